"""What a server allows, and how it behaves."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer.ops.checks import one_of
from gossamer.server.keys import is_token
from gossamer.server.logs import LOG_FORMATS
from gossamer.server.tool_parsers import FORMATS

MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters; text is held back while it may become one


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Raises ValueError for values out of range.

    queue: sequences that may wait, next to those that run; more are refused with 429.
    sequences: outputs of one HTTP request, all its prompts together. body: bytes of a request.
    output_tokens: of one output; None for what the context holds. timeout: seconds from a request's
    arrival to its end. drain: seconds that running requests have when the server is told to stop.
    """

    queue: int = 256
    sequences: int = 128
    body: int = 1 << 20
    output_tokens: int | None = None
    timeout: float = 600.0
    drain: float = 30.0

    def __post_init__(self) -> None:
        least = {"queue": 0, "sequences": 1, "body": 1024, "timeout": 0.001, "drain": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if not low <= value < float("inf"):
                raise ValueError(f"{name} is {value}; must be at least {low} and finite")
        if self.output_tokens is not None and self.output_tokens < 1:
            raise ValueError(f"output_tokens is {self.output_tokens}; must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """model: the name that requests use. api_key: None lets everyone in, unless there is a file of
    keys, api_keys (see gossamer.server.keys).

    origins: of pages in browsers that may call the API (CORS); none by default.
    hosts: names by which requests may call the server; none for any.
    profiles: a folder for traces; None switches the profiler off. log_prompts: to the log.
    log_format: text, or json for lines of JSON. lora_dir: where adapters may be loaded from while
    the server runs; None for nowhere. tool_parser: the form of tool calls; None for the one of the
    model's template.
    """

    model: str
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    profiles: Path | None = None
    log_prompts: bool = False
    api_keys: Path | None = None
    log_format: str = "text"
    lora_dir: Path | None = None
    tool_parser: str | None = None

    def __post_init__(self) -> None:
        if not self.model or not self.model.isprintable() or len(self.model) > 200:
            raise ValueError(f"model is {self.model!r}; must be 1 to 200 printable characters")
        if self.api_key is not None and not is_token(self.api_key):
            raise ValueError("the API key must be ASCII characters without spaces, at least one")
        one_of("log_format", self.log_format, LOG_FORMATS)
        if self.lora_dir is not None and not self.lora_dir.is_dir():
            raise ValueError(f"lora_dir is {self.lora_dir}; must be a folder")
        if self.tool_parser is not None and self.tool_parser not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            raise ValueError(f"tool_parser is {self.tool_parser!r}; must be one of {known}")

    def __repr__(self) -> str:  # logs and tracebacks must not tell the key
        shown: dict[str, Any] = {**self.__dict__, "api_key": self.api_key and "***"}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

"""What chats and completions have in common."""

import secrets
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gossamer.engine import SamplingParams
from gossamer.engine.sampling_params import MAX_LOGPROBS, MAX_N, MAX_SEED, MAX_TOKENS
from gossamer.server.settings import MAX_STOP_LENGTH, MAX_STOPS

MAX_STOP_IDS = 64


def _unicode(text: str) -> str:
    """JSON can spell halves of characters, and tokenizers cannot read them."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"half of a character at {error.start}; must be valid Unicode") from None
    return text


Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Text = Annotated[str, AfterValidator(_unicode)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_unicode)]
Count = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Body(BaseModel):
    """Strict: no strings for numbers, no fields that nobody reads, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False


class ResponseFormat(Body):
    """Only free text."""

    type: Literal["text"]


class Generation(Body):
    """Fields of OpenAI's API, then those that users of vLLM know, then the cache."""

    model: Annotated[str, Field(max_length=200)]
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: (
        Annotated[list[Token], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None
    ) = None
    include_stop_str_in_output: bool | None = None

    kv: Annotated[str, Field(max_length=200)] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is there without stream; must be with stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def output_limit(self) -> int | None:
        """How many tokens were asked for at most."""
        return self.max_tokens

    @property
    def max_tokens_given(self) -> bool:
        """Whether the limit is the client's own, and so a promise to keep."""
        return self.max_tokens is not None

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives to report; None for no log probabilities at all."""
        raise NotImplementedError

    def params(self, limit: int) -> SamplingParams:
        """limit: of output tokens, at least min_tokens."""
        given: dict[str, Any] = {
            name: getattr(self, name) for name in SAME_NAMES if getattr(self, name) is not None
        }
        # The engine's own seeds begin anew with each start, and so would answers.
        given.setdefault("seed", secrets.randbelow(MAX_SEED))
        return SamplingParams(**given, max_tokens=limit, logprobs=self.wanted_logprobs)


# Of SamplingParams, under the same name.
SAME_NAMES = (
    "temperature",
    "top_p",
    "n",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "include_stop_str_in_output",
)
__all__ = ["MAX_LOGPROBS", "Body", "Generation", "ResponseFormat", "StreamOptions", "Text", "Token"]

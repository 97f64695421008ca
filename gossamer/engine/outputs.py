"""What a request gives back: increments while it runs, and the whole at its end."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities before penalties and temperature: of the token, and of the likeliest."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Usage:
    """Tokens of a request. cached_tokens: part of the prompt that was in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass
class CompletionOutput:
    """One of the n outputs. stop_reason: the stop string or token that ended it, if one did.

    finish_reason: "stop" (end of text, or a stop string or token), "length", "abort", or "error",
    which `error` explains; None while it runs. refused: the request is to blame for the error, as
    its grammar is too complex.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    refused: bool = False


@dataclass
class RequestOutput:
    """A request and its n outputs. prompt: its text, where it was given as text or chat.

    prompt_logprobs: if asked for, of each prompt token given those before it; None for the first.
    prompt_top: the likeliest tokens at each of these places, as many as params.logprobs says.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    cached_tokens: int = 0
    prompt_logprobs: list[float | None] | None = None
    prompt_top: list[tuple[tuple[int, float], ...]] | None = None

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def usage(self) -> Usage:
        completion = sum(len(output.token_ids) for output in self.outputs)
        return Usage(len(self.prompt_token_ids), completion, self.cached_tokens)


@dataclass(slots=True)  # not frozen: a step makes hundreds, and those take three times as long
class Delta:
    """What a step added to output `index` of a request: usually a token, and text that is final.

    Text may lag behind tokens: characters of several tokens and possible stop strings are held
    back. request: everything so far, the same object in every step.
    """

    request: RequestOutput
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def output(self) -> CompletionOutput:
        return self.request.outputs[self.index]

"""What passes between engines and the API: requests, what steps add to them, failures."""

import uuid
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gossamer.engine import Delta, RequestOutput, SamplingParams, TokenLogprobs
from gossamer.engine.outputs import FinishReason


@dataclass(frozen=True)
class Failure:
    """Why a request has no (complete) answer.

    status: 500 where the engine is to blame: `id` finds the details in the log, and `message` is
    nobody else's business. Otherwise the client may read it; retry_after is in seconds.
    """

    message: str
    status: int = 500
    code: str | None = None
    retry_after: int | None = None
    id: str = field(default_factory=lambda: f"err-{uuid.uuid4().hex[:12]}")


class Event(NamedTuple):
    """What steps added to output `output` of a request. A tuple, as a step sends hundreds.

    cached_tokens: part of the prompt that was in the prefix cache. prompt: log probabilities of the
    prompt's tokens after the first, where they are wanted, with the first token of an output.
    """

    output: int
    token_ids: list[int]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    failure: Failure | None = None
    prompt: tuple[TokenLogprobs, ...] = ()

    @classmethod
    def of(cls, delta: Delta, failure: Failure | None = None) -> "Event":
        """To be called in the thread that steps: a delta's request changes with the next step."""
        ids, request = delta.token_ids, delta.request
        every = request.outputs[delta.index].logprobs
        logprobs = tuple(every[-len(ids) :]) if every and ids else ()
        first = len(request.outputs[delta.index].token_ids) == len(ids)
        prompt = _prompt(request) if first and request.prompt_logprobs else ()
        cached = request.cached_tokens
        return cls(delta.index, ids, logprobs, delta.finish_reason, cached, failure, prompt)

    @classmethod
    def failed(cls, failure: Failure) -> "Event":
        """All outputs of the request end with it."""
        return cls(0, [], finish_reason="error", failure=failure)

    def then(self, later: "Event") -> "Event":
        """Both in one, of the same output."""
        return Event(
            self.output,
            [*self.token_ids, *later.token_ids],
            (*self.logprobs, *later.logprobs),
            later.finish_reason,
            later.cached_tokens,
            later.failure,
            self.prompt,
        )


def _prompt(request: RequestOutput) -> tuple[TokenLogprobs, ...]:
    logprobs = request.prompt_logprobs or []
    tops = request.prompt_top or [()] * len(logprobs)
    each = zip(request.prompt_token_ids, logprobs, tops, strict=True)
    return tuple(TokenLogprobs(t, value, top) for t, value, top in each if value is not None)


@dataclass(frozen=True)
class EngineRequest:
    """One prompt for the engine of one cache. number: counted by the API process that sends it.

    params: without stop strings, which are the API's to find (`detokenize` is False). lora: the
    name of an adapter.
    """

    number: int
    kv: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    lora: str | None = None

    @property
    def most_tokens(self) -> int:
        """Of its prompt and its outputs. The API has set their limit."""
        return len(self.prompt_ids) + self.params.n * (self.params.max_tokens or 0)


Numbered: TypeAlias = list[tuple[int, Event]]  # by the number of the request

"""What passes between the engines' thread and the event loop."""

import time
import uuid
from dataclasses import dataclass, field
from typing import TypeAlias

from gossamer.engine import Delta, SamplingParams, TokenLogprobs, Usage
from gossamer.engine.outputs import FinishReason


@dataclass(frozen=True)
class Failure:
    """Why a request has no (complete) answer.

    refused: the request is to blame, and `message` says why. Otherwise the engine is, `id` finds
    the details in the log, and they are nobody else's business.
    """

    message: str
    refused: bool = False
    id: str = field(default_factory=lambda: f"err-{uuid.uuid4().hex[:12]}")


@dataclass(frozen=True)
class Event:
    """What a step added to output `index` of a request; usage comes with the last event."""

    index: int
    text: str = ""
    tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    failure: Failure | None = None

    @classmethod
    def of(cls, delta: Delta, *, last: bool, failure: Failure | None = None) -> "Event":
        """To be called in the thread that steps: a delta's request changes with the next step.

        last: of all outputs; the request is finished for each that ended in the same step.
        """
        output, count = delta.request.outputs[delta.index], len(delta.token_ids)
        logprobs = tuple(output.logprobs[-count:]) if output.logprobs and count else ()
        usage = delta.request.usage if last else None
        return cls(delta.index, delta.text, count, logprobs, delta.finish_reason, usage, failure)


@dataclass(eq=False)
class EngineRequest:
    """One prompt for the engine of one cache. Counts and times belong to the engines' thread."""

    id: str
    kv: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    finished: int = 0  # of its n outputs
    arrival: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    latest_token: dict[int, float] = field(default_factory=dict)  # by output


Events: TypeAlias = list[tuple[EngineRequest, Event]]

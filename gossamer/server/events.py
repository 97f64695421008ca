"""What goes between the thread of the engines and everyone else; nothing of it changes later."""

import time
from dataclasses import dataclass, field

from gossamer.engine import Delta, SamplingParams, TokenLogprobs, Usage
from gossamer.engine.outputs import FinishReason


@dataclass(frozen=True)
class Failure:
    """Why a request has no (complete) answer.

    refused: the request is to blame, and `message` says why. Otherwise the engine is, `id` finds
    the details in the log, and they are nobody else's business.
    """

    id: str
    message: str
    refused: bool = False


@dataclass(frozen=True)
class Event:
    """What a step added to output `index` of a job; usage comes with the job's last event."""

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
class Job:
    """One prompt for one engine (`lane`). Counts and times belong to the engines' thread."""

    id: str
    lane: str
    ids: tuple[int, ...]
    params: SamplingParams
    ended: int = 0  # of its n outputs
    came: float = field(default_factory=time.perf_counter)
    first: float | None = None
    latest: dict[int, float] = field(default_factory=dict)

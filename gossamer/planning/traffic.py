"""The steady state of one engine under a rate of requests: batch, latencies, and the highest rate.

Prompts go first: a step is filled up with them, and sequences that decode get one token in it,
however long it takes. So decoding is a queue's low priority: a sequence has its own steps, those
for prompts that wait when it begins, and those for prompts that come meanwhile. How many sequences
decode at a time is Little's law: rate times the time that one takes.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property

from gossamer.planning.memory import Limits, sequence_bytes, sequences_that_fit
from gossamer.planning.step import StepModel, StepTime, Work
from gossamer.workloads.bounds import Bounds

HALVINGS = 20  # of an interval
SHARING = 2  # rounds until it is known how many
MOST_BUSY = 0.95  # with prompts; beyond it, they queue without end


@dataclass(frozen=True)
class Traffic:
    """Requests that are all alike. prefix_hit: the share of a prompt that the prefix cache has.

    Raises ValueError for numbers out of range.
    """

    prompt: int
    output: int
    prefix_hit: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; must be an integer of at least 1")
        if not 0 <= self.prefix_hit < 1:
            raise ValueError(f"prefix_hit is {self.prefix_hit}; must be from 0 to below 1")

    @property
    def longest(self) -> int:
        return self.prompt + self.output

    @cached_property
    def new(self) -> float:
        """Tokens of a prompt that are computed; at least one, as its logits are wanted."""
        return max(1.0, self.prompt * (1 - self.prefix_hit))

    @cached_property
    def pairs(self) -> float:
        """Of queries and keys in those."""
        return self.new * (self.prompt - self.new / 2)

    @cached_property
    def context(self) -> float:
        """Tokens that a decoding sequence sees, on average."""
        return self.prompt + self.output / 2


@dataclass(frozen=True)
class State:
    """rate: requests per second; batch: sequences that decode; held: those that have pages; busy:
    share of the time that goes to prompts; tpot, ttft: mean seconds; alone: a step without prompts.
    """

    rate: float
    batch: float
    held: float
    busy: float
    tpot: float
    ttft: float
    alone: StepTime

    @property
    def shares(self) -> dict[str, float]:
        """Of the time, by what takes it."""
        parts, total = self.alone.parts, self.alone.total
        shares = {name: (1 - self.busy) * s / total for name, s in parts.items()}
        return shares | {"prompts": self.busy}


@dataclass(frozen=True)
class Replica:
    """One engine that serves such traffic within bounds of mean latency.

    Raises ValueError where not one sequence fits.
    """

    model: StepModel
    traffic: Traffic
    limits: Limits
    bounds: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        _ = self.fits

    @cached_property
    def fits(self) -> int:
        """Sequences that have room at a time."""
        return sequences_that_fit(self.model, self.limits, self.traffic.longest)

    @property
    def sequence_bytes(self) -> int:
        return sequence_bytes(self.model, self.traffic.longest)

    def state(self, rate: float) -> State:
        """At a rate; where more would decode than have room, `batch` says one more than that."""
        most = min(self.fits, self.limits.max_num_seqs) + 1.0
        found, batch = self._times(rate, most), most
        if rate * found.decoding < most:
            batch = _last(lambda b: rate * self._times(rate, b).decoding >= b, most)
            found = self._times(rate, batch)
        return State(
            rate=rate,
            batch=batch,
            held=batch + rate * found.prompt,
            busy=found.busy,
            tpot=found.decoding / max(1, self.traffic.output - 1),
            ttft=found.alone.total / 2 + found.waiting + found.prompt,
            alone=found.alone,
        )

    def _times(self, rate: float, batch: float) -> "_Times":
        """Of a request, while so many decode: prompts as an M/D/1 queue, decoding below them."""
        traffic = self.traffic
        room = max(1.0, self.limits.max_num_batched_tokens - batch) / traffic.new  # for prompts
        chunks = max(1.0, 1 / room)
        alone, each = self._step(batch, 0.0), min(1.0, room)
        for _ in range(SHARING):  # short prompts that come during a step share the next one
            both = self._step(batch, each)
            each = min(max(1.0, rate * both.total), room)
        both = self._step(batch, each)
        added = (both.total - alone.total) / each
        busy, left = rate * added, max(1e-9, 1 - rate * added)
        queue = busy / (2 * left)
        behind = busy * (1 + queue)  # prompts in the system when one leaves it
        own = (traffic.output - 1) * alone.total
        decoding = (own + behind * added) / left if traffic.output > 1 else 0.0
        prompt = chunks * both.total
        return _Times(alone, busy, prompt, queue * prompt, decoding)

    def _step(self, batch: float, prompts: float) -> StepTime:
        """With so much of a prompt. A step has a sequence at least, or would not be."""
        traffic, batch = self.traffic, max(1.0, batch)
        return self.model.time(
            Work(
                decoding=batch,
                context=batch * traffic.context,
                prompt=prompts * traffic.new,
                pairs=prompts * traffic.pairs,
                ending=prompts,
            )
        )

    def used(self, state: State) -> dict[str, float]:
        """How much of each limit a state takes; above 1 is too much."""
        bounded = self._bounded(state)
        return {
            "KV memory": state.held / self.fits,
            "max_num_seqs": state.held / self.limits.max_num_seqs,
            "prompts": state.busy / MOST_BUSY,
            **{name: 1e3 * seconds / bound for name, (seconds, bound) in bounded.items()},
        }

    def _bounded(self, state: State) -> dict[str, tuple[float, float]]:
        """Latencies that have bounds: seconds, and milliseconds at most."""
        e2e = state.ttft + (self.traffic.output - 1) * state.tpot
        latencies = {"ttft": state.ttft, "tpot": state.tpot, "e2e": e2e}
        bounds = asdict(self.bounds)
        return {n: (s, bounds[n]) for n, s in latencies.items() if bounds[n] is not None}

    @cached_property
    def most(self) -> State:
        """At the highest rate within all limits. Raises ValueError where a request alone is too
        much."""
        idle = self.state(0.0)
        for name, (seconds, bound) in self._bounded(idle).items():
            if 1e3 * seconds > bound:
                raise ValueError(
                    f"{name} of a request alone is {1e3 * seconds:,.1f} ms with "
                    f"tensor_parallel_size {self.model.ranks}; must be at most {bound:g}"
                )
        high = 1.0
        while self._possible(high):
            high *= 2
        return self.state(_last(self._possible, high))

    def _possible(self, rate: float) -> bool:
        return max(self.used(self.state(rate)).values()) <= 1

    @property
    def limit(self) -> str:
        """What does not allow more than the highest rate."""
        used = self.used(self.most)
        return max(used, key=lambda name: used[name])


@dataclass(frozen=True)
class _Times:
    """alone: a step without prompts. busy: share of the time with prompts. Seconds that a prompt
    takes, waits for others, and that its tokens after the first take."""

    alone: StepTime
    busy: float
    prompt: float
    waiting: float
    decoding: float


def _last(holds: Callable[[float], bool], high: float) -> float:
    """The largest x up to `high` for which it holds, as it does for 0 and all below that."""
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low

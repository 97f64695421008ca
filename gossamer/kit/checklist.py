"""The checklist of an op: seven questions, each with a yes or no and the figures behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gossamer.bench.suite import USUAL, Target
from gossamer.kit.speed import Point, mean_speedup, peer_names, worst

# Scratch memory that nobody has to justify: workspaces, counters, partial results.
SMALL_BYTES, SMALL_SHARE = 1 << 20, 0.1


@dataclass(frozen=True)
class Parity:
    """One backend against the reference in higher precision, on `inputs` calls.

    errors: the largest one by dtype. problem: "" where all is right.
    """

    backend: str
    inputs: int
    errors: Mapping[str, float]
    problem: str = ""


@dataclass(frozen=True)
class Memory:
    """Bytes that a call takes at its peak beyond arguments and results: ours, and the peer's.

    tensors: of arguments and results. point: where this was measured.
    """

    ours: int
    peer: int
    peer_name: str
    tensors: int
    point: str


@dataclass(frozen=True)
class Fallback:
    """A process in which only `backends` may be used; used: the one that ran. problem: or ""."""

    backends: str
    used: str
    problem: str = ""


@dataclass(frozen=True)
class Profiled:
    """One call in a profile: its longest kernel, that kernel's share of all time, and how long."""

    kernel: str
    share: float
    kernels: int
    total_ms: float


class Measure(Protocol):
    """Finds the facts about one op on one device."""

    def parities(self) -> Sequence[Parity]:
        """One of each backend that runs here."""

    def points(self) -> Sequence[Point]:
        """The speed at every point of the op's suite."""

    def memory(self) -> Memory:
        """At the largest point of the suite."""

    def fallbacks(self) -> Sequence[Fallback]:
        """Runs without the faster backends."""

    def profile(self) -> Profiled | None:
        """None where the op is not in its own profile."""

    def undocumented(self) -> Sequence[str]:
        """What is not written down."""


@dataclass(frozen=True)
class Answer:
    """Yes or no, what was measured, and the numbers among it by name."""

    passed: bool
    figures: str
    values: Mapping[str, float] = field(default_factory=dict)


def check(measure: Measure, target: Target = USUAL) -> dict[str, Answer]:
    """The answer to every question. A measurement that fails is an answer too."""
    questions: dict[str, Callable[[], Answer]] = {
        "right": lambda: _right(measure),
        "fast": lambda: _fast(measure, target),
        "good across sizes": lambda: _across_sizes(measure, target),
        "memory sane": lambda: _memory(measure.memory()),
        "fallback works": lambda: _fallback(measure),
        "profiled": lambda: _profiled(measure),
        "documented": lambda: _documented(measure),
    }
    return {question: _answer(find) for question, find in questions.items()}


def _answer(find: Callable[[], Answer]) -> Answer:
    try:
        return find()
    except Exception as error:  # whatever it is, it is the answer
        return Answer(False, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _right(measure: Measure) -> Answer:
    """Every backend that runs here, and at least one besides the reference."""
    found = measure.parities()
    if all(p.backend == "reference" for p in found):
        return Answer(False, "no backend but the reference runs here")
    values = {f"{p.backend} {dtype}": error for p in found for dtype, error in p.errors.items()}
    told = "\n".join(map(_parity, found))
    return Answer(not any(p.problem for p in found), told, values)


def _parity(parity: Parity) -> str:
    if parity.problem:
        return f"{parity.backend}: {parity.problem}"
    errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in parity.errors.items())
    return f"{parity.backend}: largest error {errors} in {parity.inputs} calls"


def _fast(measure: Measure, target: Target) -> Answer:
    """The geometric mean over all points of the suite, each with the default backend."""
    points = measure.points()
    if not points:
        return Answer(False, "no point with a backend of ours and a peer")
    mean = mean_speedup(points)
    told = f"{mean:.2f}x {peer_names(points)} in the mean of {len(points)}; asked {target.mean:g}x"
    if target.mean < USUAL.mean:
        told += f", because {target.reason}"
    return Answer(mean >= target.mean, told, {"mean": mean, "asked": target.mean})


def _across_sizes(measure: Measure, target: Target) -> Answer:
    """The worst point of the suite."""
    points = measure.points()
    if not points:
        return Answer(False, "no point with a backend of ours and a peer")
    least = worst(points)
    slow = sum(p.speedup < target.worst for p in points)
    told = f"{least.speedup:.2f}x at worst ({least}); asked {target.worst:g}x"
    if target.worst < USUAL.worst:
        told += f", because {target.reason}"
    if slow:
        told += f"; {slow} of {len(points)} points are slower"
    return Answer(not slow, told, {"worst": least.speedup, "asked": target.worst})


def _memory(memory: Memory) -> Answer:
    """No more than the peer takes, or little next to the tensors themselves."""
    allowed = max(memory.peer, SMALL_BYTES, int(SMALL_SHARE * memory.tensors))
    told = (
        f"{_mb(memory.ours)} beyond arguments and results ({_mb(memory.tensors)}), "
        f"{memory.peer_name} {_mb(memory.peer)} ({memory.point})"
    )
    values = {"bytes": memory.ours, "peer": memory.peer, "tensors": memory.tensors}
    return Answer(memory.ours <= allowed, told, values)


def _mb(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def _fallback(measure: Measure) -> Answer:
    found = measure.fallbacks()
    told = [f"only {f.backends}: {f.problem or f'same result from {f.used}'}" for f in found]
    return Answer(bool(found) and not any(f.problem for f in found), "\n".join(told))


def _profiled(measure: Measure) -> Answer:
    found = measure.profile()
    if found is None:
        return Answer(False, "the op is not in a profile of its own call")
    count = f"{found.kernels} kernels" if found.kernels != 1 else "1 kernel"
    told = f"{found.kernel}: {found.share:.0%} of {found.total_ms:.3g} ms in {count}"
    return Answer(True, told, {"share": found.share, "total_ms": found.total_ms})


def _documented(measure: Measure) -> Answer:
    missing = measure.undocumented()
    return Answer(not missing, "; ".join(missing) or "docstring, page, index")

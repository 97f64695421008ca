"""The checklist of an op: seven questions, each with a yes or no and the figures behind it."""

from collections.abc import Callable
from dataclasses import dataclass

from gossamer.bench.target import Target
from gossamer.kit.facts import Measure, Memory
from gossamer.kit.speed import mean_speedup, peer_names, worst

# Scratch memory that nobody has to justify: workspaces, counters, partial results.
SMALL_BYTES, SMALL_SHARE = 1 << 20, 0.1


@dataclass(frozen=True)
class Finding:
    """One line of the checklist. figures: what was measured, in words."""

    question: str
    passed: bool
    figures: str


def check(measure: Measure, target: Target) -> list[Finding]:
    """All findings. A measurement that fails is a finding too."""
    questions: dict[str, Callable[[], tuple[bool, str]]] = {
        "right": lambda: _right(measure),
        "fast": lambda: _fast(measure, target),
        "good across sizes": lambda: _across_sizes(measure, target),
        "memory sane": lambda: _memory(measure.memory()),
        "fallback works": lambda: _fallback(measure),
        "profiled": lambda: _profiled(measure),
        "documented": lambda: _documented(measure),
    }
    return [_answer(question, find) for question, find in questions.items()]


def _answer(question: str, find: Callable[[], tuple[bool, str]]) -> Finding:
    try:
        return Finding(question, *find())
    except Exception as error:  # whatever it is, it is the answer
        return Finding(question, False, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _right(measure: Measure) -> tuple[bool, str]:
    """Every backend that runs here, and at least one beside the reference."""
    found = measure.parities()
    if all(p.backend == "reference" for p in found):
        return False, "no backend but the reference runs here"
    told = [
        f"{p.backend}: {p.problem}" if p.problem
        else f"{p.backend} off by {p.max_error:.2g} at most in {p.inputs} calls"
        for p in found
    ]  # fmt: skip
    return not any(p.problem for p in found), "; ".join(told)


def _fast(measure: Measure, target: Target) -> tuple[bool, str]:
    """The geometric mean over all points of the suite, each with the default backend."""
    points = measure.points()
    if not points:
        return False, "no point with a backend of ours and a peer"
    mean = mean_speedup(points)
    told = f"{mean:.2f}x {peer_names(points)} in the mean of {len(points)}; asked {target.mean:g}x"
    return mean >= target.mean, _with_reason(told, target)


def _across_sizes(measure: Measure, target: Target) -> tuple[bool, str]:
    """The worst point of the suite."""
    points = measure.points()
    if not points:
        return False, "no point with a backend of ours and a peer"
    least = worst(points)
    slow = sum(p.speedup < target.worst for p in points)
    told = f"{least.speedup:.2f}x at worst ({least}); asked {target.worst:g}x"
    if slow:
        told += f"; {slow} of {len(points)} points are slower"
    return not slow, _with_reason(told, target)


def _with_reason(told: str, target: Target) -> str:
    return f"{told}: {target.reason}" if target.reason else told


def _memory(memory: Memory) -> tuple[bool, str]:
    """No more than the peer takes, or little beside the tensors themselves."""
    allowed = max(memory.peer, SMALL_BYTES, int(SMALL_SHARE * memory.tensors))
    told = (
        f"{_mb(memory.ours)} beyond arguments and results ({_mb(memory.tensors)}), "
        f"{memory.peer_name} {_mb(memory.peer)} ({memory.point})"
    )
    return memory.ours <= allowed, told


def _mb(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def _fallback(measure: Measure) -> tuple[bool, str]:
    found = measure.fallbacks()
    told = [f"only {f.backends}: {f.problem or f'same result from {f.used}'}" for f in found]
    return bool(found) and not any(f.problem for f in found), "; ".join(told)


def _profiled(measure: Measure) -> tuple[bool, str]:
    found = measure.profile()
    if found is None:
        return False, "the op is not in a profile of its own call"
    count = f"{found.kernels} kernels" if found.kernels != 1 else "1 kernel"
    return True, f"{found.kernel}: {found.share:.0%} of {found.total_ms:.3g} ms in {count}"


def _documented(measure: Measure) -> tuple[bool, str]:
    missing = measure.undocumented()
    return not missing, "; ".join(missing) or "docstring, page, README"

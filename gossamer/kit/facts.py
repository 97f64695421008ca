"""What the checklist is decided on: facts about an op, and who finds them out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gossamer.kit.speed import Point


@dataclass(frozen=True)
class Parity:
    """One backend beside the reference in higher precision, on so many inputs.

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
        """What is not written down, in words."""

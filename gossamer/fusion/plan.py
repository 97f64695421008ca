"""A fusion plan: the operators of a graph, and a bit for every boundary between two of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

UNFUSED = "unfused"  # what computes a segment whose operators stay apart
TORCH = "torch"  # what computes attention that is left as it is


@dataclass(frozen=True)
class Plan:
    """operators: how many. cuts: bit i is set where a segment ends between operators i and i + 1.

    kernels: what was chosen for a segment, or for attention, by its first operator: a backend, a
    candidate of masked attention; nothing means the usual choice. measured: microseconds of
    segments, by their first operators, where the tuner timed them.
    """

    operators: int
    cuts: int
    kernels: Mapping[int, str] = field(default_factory=dict, hash=False)
    measured: Mapping[int, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.operators < 0:
            raise ValueError(f"a plan has {self.operators} operators; must be at least 0")
        if not 0 <= self.cuts < 1 << self.boundaries:
            raise ValueError(
                f"cuts are {self.cuts:#x}; must be 0 to {(1 << self.boundaries) - 1:#x}, a bit "
                f"for each of {self.boundaries} boundaries"
            )

    @property
    def boundaries(self) -> int:
        return max(0, self.operators - 1)

    @classmethod
    def unfused(cls, operators: int) -> Self:
        """Every operator by itself."""
        return cls(operators, (1 << max(0, operators - 1)) - 1)

    @classmethod
    def of_segments(
        cls, segments: Iterable[range], kernels: Mapping[int, str] | None = None
    ) -> Self:
        """Of segments that follow each other from operator 0 on."""
        ends = [segment.stop for segment in segments]
        operators = ends[-1] if ends else 0
        return cls(operators, sum(1 << (end - 1) for end in ends[:-1]), kernels or {})

    @property
    def segments(self) -> list[range]:
        """Runs of operators, in order."""
        if not self.operators:
            return []
        ends = [i + 1 for i in range(self.boundaries) if self.cuts >> i & 1] + [self.operators]
        return [range(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

    @property
    def key(self) -> str:
        """In hex: the cuts below a bit that says how many there are. See `decode`."""
        return f"{1 << self.boundaries | self.cuts:x}"

    @classmethod
    def decode(cls, key: str, operators: int) -> Self:
        """The inverse of `key`. ValueError for what is no key of so many operators."""
        try:
            number = int(key, 16)
        except (TypeError, ValueError):
            number = 0
        plan_boundaries = max(0, operators - 1)
        if number <= 0 or number.bit_length() != plan_boundaries + 1 or f"{number:x}" != key:
            raise ValueError(
                f"plan is {key!r}; must be a hex number of {plan_boundaries + 1} bits, "
                f"for {operators} operators"
            )
        return cls(operators, number ^ 1 << plan_boundaries)

    def with_kernels(self, kernels: Mapping[int, str]) -> Self:
        return replace(self, kernels=dict(kernels))

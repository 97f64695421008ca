"""Everything that K or V could be stored as, for any head_dim."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from gossamer.evaluation.frontier.budget import Budget, share_at
from gossamer.kv import Dense, KVConfig, KVShape, Side, Sparse
from gossamer.kv.layouts import BASES, Layout
from gossamer.kv.policies import CALIBRATED
from gossamer.ops.kv_block import CHUNK, valid_scales

KEPT = tuple(Fraction(n, 8) for n in (2, 3, 4, 5))  # more than that, dense values are smaller
SPARSE_TYPES = ("fp8_e4m3", "int8", "int4", "int3")  # and 16 bits
DENSE_TYPES = (*SPARSE_TYPES, "int2")
NONE, MAGNITUDE = "none", "magnitude"


@dataclass(frozen=True)
class Candidates:
    """Sides, each once, small ones first."""

    k: tuple[Side, ...]
    v: tuple[Side, ...]

    def __len__(self) -> int:
        return len(self.k) + len(self.v)


def side_words(side: Side) -> str:
    """One side, for people and for files."""
    basis = f",basis={side.basis}" if side.basis != NONE else ""
    policy = f",policy={side.policy}" if side.policy != MAGNITUDE else ""
    return f"{side.layout}{basis}{policy}"


def make_candidates(head_dim: int, *, half: str, calibrated: bool) -> Candidates:
    """half: the type of 16 bits that goes with the model. calibrated: bases and ranks too."""
    bases = BASES if calibrated else (NONE,)
    ranks = (MAGNITUDE, *CALIBRATED) if calibrated else (MAGNITUDE,)
    k = [
        Side(layout, basis, policy)
        for layout in _layouts(head_dim, half)
        for basis in bases
        for policy in (ranks if isinstance(layout, Sparse) else (MAGNITUDE,))
    ]
    v = [Side(layout, basis) for layout in _layouts(head_dim, half) for basis in bases]
    return Candidates(_in_order(k, head_dim), _in_order(v, head_dim))


def within(found: Candidates, shape: KVShape, budget: Budget, reach: float) -> Candidates:
    """Those that fit `reach` times the budget together with the smallest of the other side.

    Raises ValueError, with the smallest cache of all, where no pair fits the budget itself.
    """
    smallest = KVConfig(found.k[0], found.v[0])
    if not budget.holds(smallest, shape):
        least = share_at(smallest, shape, budget.length)
        size = least * KVConfig().bytes_per_token(shape)
        raise ValueError(
            f"budget is {budget.words}; must be at least {least:.2%} or {size:.0f} bytes per token "
            f"at {budget.length} tokens, which the smallest cache takes: {smallest}"
        )
    return Candidates(
        tuple(k for k in found.k if budget.holds(KVConfig(k, smallest.v), shape, reach)),
        tuple(v for v in found.v if budget.holds(KVConfig(smallest.k, v), shape, reach)),
    )


def uniform(shape: KVShape, budget: Budget, half: str) -> list[KVConfig]:
    """Magnitude pruning with the same `keep` for K and V, the largest that fits; 16 bits first."""
    found = []
    for values in (half, "int8", "int4"):
        for keep in range(shape.head_dim - CHUNK, 0, -CHUNK):
            side = Side(Sparse(keep, values))
            if budget.holds(KVConfig(side, side), shape):
                found.append(KVConfig(side, side))
                break
    return found


def _layouts(head_dim: int, half: str) -> Iterator[Layout]:
    for values in (half, *DENSE_TYPES):
        for scales in valid_scales(values, dense=True):
            yield from _possible(Dense(values, scales), head_dim)
    keeps = {round(part * head_dim / CHUNK) * CHUNK for part in KEPT} - {0, head_dim}
    for keep in sorted(keeps):
        for values in (half, *SPARSE_TYPES):
            for scales in valid_scales(values, dense=False):
                yield from _possible(Sparse(keep, values, scales), head_dim)


def _possible(layout: Layout, head_dim: int) -> Iterable[Layout]:
    """Not for every head_dim: groups have 32 channels."""
    try:
        layout.format(head_dim)
    except ValueError:
        return ()
    return (layout,)


def _in_order(sides: Sequence[Side], head_dim: int) -> tuple[Side, ...]:
    return tuple(sorted(sides, key=lambda side: (side.block_bytes(head_dim), side_words(side))))

"""What a search is asked, what K or V could be stored as for any head_dim, and what that takes."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Self

from gossamer.engine.config import parse_bytes
from gossamer.kv import Dense, KVConfig, KVShape, Side, Sparse
from gossamer.kv.bits import kernel_pairs
from gossamer.kv.layouts import BASES, PLAIN, Coded, Layout
from gossamer.kv.policies import POLICIES
from gossamer.kv.speed import cuda_limits
from gossamer.ops.kv_block import BLOCK_TOKENS, CHUNK, valid_scales

KEPT = tuple(Fraction(n, 8) for n in (2, 3, 4, 5))  # more than that, dense values are smaller
SPARSE_TYPES = ("fp8_e4m3", "int8", "int4", "int3")  # and 16 bits
DENSE_TYPES = (*SPARSE_TYPES, "int2")
NONE, MAGNITUDE = "none", "magnitude"
REACH = 1.25  # times the budget: what a little more memory would bring
Fits = Callable[[Side, Side], bool]  # K and V together


@dataclass(frozen=True)
class Budget:
    """share: of dense float16, for a sequence of `length` tokens. text: as it was given."""

    text: str
    share: float
    length: int

    @classmethod
    def parse(cls, text: str, shape: KVShape, length: int) -> Self:
        """`25%`, or bytes per token: `5760`, `5.5KB`. ValueError says what is valid."""
        if type(length) is not int or length < BLOCK_TOKENS:
            raise ValueError(f"length is {length!r}; must be at least {BLOCK_TOKENS} tokens")
        whole = KVConfig().bytes_per_token(shape)
        percent = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%", text.strip())
        try:
            share = float(percent[1]) / 100 if percent else parse_bytes("", text) / whole
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            raise ValueError(
                f"budget is {text!r}; must be above 0% and below 100% of dense float16, like 25%, "
                f"or bytes per token from 1 to {whole - 1:.0f}"
            )
        return cls(text.strip(), share, length)

    def holds(self, config: KVConfig, shape: KVShape, times: float = 1.0) -> bool:
        """Whether a cache fits `times` the budget."""
        return config.share_at(shape, self.length) <= self.share * times + 1e-12


@dataclass(frozen=True)
class Candidates:
    """Sides, each once, small ones first."""

    k: tuple[Side, ...]
    v: tuple[Side, ...]

    def __len__(self) -> int:
        return len(self.k) + len(self.v)


@dataclass(frozen=True)
class Problem:
    """What is asked. half: the type of 16 bits that goes with the model (fp16, bf16).

    calibrated, coded: whether there is a calibration, and whether it knows of coded rows.
    """

    shape: KVShape
    budget: Budget
    half: str = "fp16"
    calibrated: bool = False
    coded: bool = False

    def candidates(self) -> Candidates:
        """Raises ValueError for a budget that nothing fits."""
        return within(self._every, self.shape, self.budget, REACH, self.allows)

    def allows(self, k: Side, v: Side) -> bool:
        """Whether such a pair may be recommended: only with a tuned kernel on GPUs.

        Where this head_dim has none at all, every pair may. Coded rows only as kernels of their own
        have them: with anything else on the other side, they decode half as fast.
        """
        either = isinstance(k.layout, Coded) or isinstance(v.layout, Coded)
        if either and (k.layout, v.layout) not in kernel_pairs(self.shape.head_dim):
            return False
        return not self.has_kernels or _tuned(k.layout, v.layout, self.shape, self.half)

    @cached_property
    def has_kernels(self) -> bool:
        layouts = {side.layout for side in self._every.k}
        return any(_tuned(layout, layout, self.shape, self.half) for layout in layouts)

    @cached_property
    def _every(self) -> Candidates:
        return make_candidates(
            self.shape.head_dim, half=self.half, calibrated=self.calibrated, coded=self.coded
        )


@cache
def _tuned(k: Layout, v: Layout, shape: KVShape, half: str) -> bool:
    """By what the CUDA kernels say of themselves, whether there is a GPU or not."""
    dtype = next(dtype for dtype, name in PLAIN.items() if name == half)
    return cuda_limits(KVConfig(Side(k), Side(v)), shape, dtype) is None


def side_spec(side: Side) -> str:
    """One side as specs name it; screening errors are kept under it."""
    basis = f",basis={side.basis}" if side.basis != NONE else ""
    policy = f",policy={side.policy}" if side.policy != MAGNITUDE else ""
    return f"{side.layout}{basis}{policy}"


def make_candidates(
    head_dim: int, *, half: str, calibrated: bool, coded: bool = False
) -> Candidates:
    """half: the type of 16 bits that goes with the model. calibrated: bases and ranks too.

    coded: rows of codes too, those of kernel_pairs.
    """
    bases = BASES if calibrated else (NONE,)
    ranks = [name for name, policy in POLICIES.items() if calibrated or not policy.statistic]
    k = [
        Side(layout, basis, policy)
        for layout in _layouts(head_dim, half)
        for basis in bases
        for policy in (ranks if isinstance(layout, Sparse) else (MAGNITUDE,))
    ]
    v = [Side(layout, basis) for layout in _layouts(head_dim, half) for basis in bases]
    codes = kernel_pairs(head_dim) if coded else ()
    k += [Side(layout) for layout in {pair[0] for pair in codes}]
    v += [Side(layout) for layout in {pair[1] for pair in codes}]
    return Candidates(_in_order(k, head_dim), _in_order(v, head_dim))


def within(
    found: Candidates,
    shape: KVShape,
    budget: Budget,
    reach: float,
    allows: Fits = lambda k, v: True,
) -> Candidates:
    """Those that fit `reach` times the budget together with the smallest of the other side.

    allows: which pairs count. Raises ValueError, with the smallest cache of all, where no pair fits
    the budget itself.
    """
    pairs = {k: next((v for v in found.v if allows(k, v)), None) for k in found.k}
    by_k = [KVConfig(k, v) for k, v in pairs.items() if v is not None]
    pairs = {v: next((k for k in found.k if allows(k, v)), None) for v in found.v}
    by_v = [KVConfig(k, v) for v, k in pairs.items() if k is not None]
    smallest = min(by_k, key=lambda pair: pair.block_bytes(shape))
    if not budget.holds(smallest, shape):
        least = smallest.share_at(shape, budget.length)
        size = least * KVConfig().bytes_per_token(shape)
        raise ValueError(
            f"budget is {budget.text}; must be at least {least:.2%} or {size:.0f} bytes per token "
            f"at {budget.length} tokens, which the smallest cache takes: {smallest}"
        )
    return Candidates(
        tuple(pair.k for pair in by_k if budget.holds(pair, shape, reach)),
        tuple(pair.v for pair in by_v if budget.holds(pair, shape, reach)),
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
    return tuple(sorted(sides, key=lambda side: (side.block_bytes(head_dim), side_spec(side))))

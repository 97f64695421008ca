"""Sets of tokens, and the masks of keys (columns) and queries (rows) in such a set."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from gossamer.masks.base import Device, Mask
from gossamer.masks.checks import same_device, whole
from gossamer.masks.shapes import kinds, with_attributes

Ranges: TypeAlias = tuple[range, ...]
TokenSet: TypeAlias = int | range | Iterable[int | range]

MOST_COMPARED = 8  # ranges that are compared one by one; more are looked up in a table


def merged(mask: str, name: str, tokens: Any) -> Ranges:
    """Sorted ranges that do not touch, from an index, a range, or any number of both."""
    parts = (tokens,) if isinstance(tokens, int | range) else tuple(tokens)
    pieces = [piece for part in parts for piece in _ranges(mask, name, part)]
    found: list[range] = []
    for piece in sorted(pieces, key=lambda r: r.start):
        if found and piece.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, piece.stop))
        else:
            found.append(piece)
    return tuple(found)


def _ranges(mask: str, name: str, part: Any) -> Iterable[range]:
    if not isinstance(part, range):
        start = whole(mask, name, part, 0)
        return (range(start, start + 1),)
    if part and min(part[0], part[-1]) < 0:
        raise ValueError(f"{mask}: {name} has {part}; indices must be at least 0")
    if abs(part.step) == 1:
        return (range(min(part), max(part) + 1),) if part else ()
    return (range(i, i + 1) for i in part)


@dataclass(frozen=True)
class _Chosen(Mask):
    """The entries whose query or key is in a set of tokens: an index, a range, or several."""

    tokens: Ranges
    # Where there are many: how many tokens of the set are below index i.
    below: Tensor | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", merged(type(self).__name__, "tokens", self.tokens))
        if len(self.tokens) > MOST_COMPARED:
            object.__setattr__(self, "below", _below(self.tokens))

    def holds(self, index: Tensor) -> Tensor:
        """Whether tokens are in the set."""
        if self.below is not None:
            return self.count(index, index + 1) > 0
        found = index < 0  # nothing; FlexAttention refuses constants
        for part in self.tokens:
            found = found | ((index >= part.start) & (index < part.stop))
        return found

    def count(self, start: Tensor, stop: Tensor) -> Tensor:
        """How many tokens of [start, stop) are in the set."""
        if self.below is not None:
            same_device(type(self).__name__, self.below, start)
            last = len(self.below) - 1
            return self.below[stop.clamp(max=last)] - self.below[start.clamp(max=last)]
        found = torch.zeros_like(start)
        for part in self.tokens:
            inside = stop.clamp(max=part.stop) - start.clamp(min=part.start)
            found += inside.clamp(min=0)
        return found

    def span(self, start: Tensor, stop: Tensor) -> Tensor:
        count = self.count(start, stop)
        return kinds(empty=count == 0, full=count == stop - start)

    def to(self, device: Device) -> Self:
        if self.below is None:
            return self
        clone: Self = with_attributes(self, below=self.below.to(device))
        return clone

    def check(self, q_len: int, kv_len: int) -> None:
        last = self.tokens[-1].stop - 1 if self.tokens else -1
        if last >= max(q_len, kv_len):
            raise ValueError(
                f"token {last} is beyond the end; q_len and kv_len are {q_len} and {kv_len}"
            )


class Keys(_Chosen):
    """Every query sees the keys of a set."""

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.holds(k)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return self.span(k0, k1)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (k0,)


class Queries(_Chosen):
    """The queries of a set see every key."""

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.holds(q)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return self.span(q0, q1)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (q0,)


@dataclass(frozen=True)
class FirstKeys(Mask):
    """Every query sees the first `count` keys, or all where there are fewer."""

    count: int

    def __post_init__(self) -> None:
        whole("FirstKeys", "count", self.count, 0)

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < self.count

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return kinds(empty=k0 >= self.count, full=k1 <= self.count)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (k0,)


def _below(tokens: Ranges) -> Tensor:
    inside = torch.zeros(tokens[-1].stop + 1, dtype=torch.int32)
    for part in tokens:
        inside[part.start + 1 : part.stop + 1] = 1
    return inside.cumsum(0, dtype=torch.int32)

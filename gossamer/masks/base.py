"""What a mask is, and how masks combine.

A mask says which query sees which key. From one definition come the predicate (which FlexAttention
takes as a mask_mod), the dense tensor, and bounds for whole boxes, from which tile maps are built.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from gossamer.masks.checks import as_device, sizes

EMPTY, MIXED, FULL = 0, 1, 2  # so that `and` is the minimum, `or` the maximum, `not` is 2 - x

Device: TypeAlias = torch.device | str | int | None
Predicate: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
T = TypeVar("T")

CHUNK = 1 << 22  # entries of a dense mask that are computed at a time


class Mask:
    """Base class. Indices count from 0: batch element b, query head h, query q, key k."""

    @property
    def batch(self) -> int | None:
        """How many batch elements it is defined for; None where all see the same."""
        return None

    @property
    def heads(self) -> int | None:
        """How many query heads it is defined for; None where all see the same."""
        return None

    @property
    def lengths(self) -> tuple[int, int] | None:
        """The (q_len, kv_len) it is bound to; None where it is defined for any."""
        return None

    @property
    def parts(self) -> "tuple[Mask, ...]":
        """The masks that it is made of."""
        return ()

    @property
    def family(self) -> Hashable:
        """Masks of equal families have similar tiles at similar lengths; None: like no other.

        The first of a family is looked at closely; the others get the kernel that it got.
        """
        return None

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Whether query q sees key k: bool, for integer tensors that broadcast.

        Pointwise operations and table look-ups only, so that FlexAttention can compile it. The
        result broadcasts to the shape of the indices; it may lack what does not matter.
        """
        raise NotImplementedError

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        """int8: whether boxes of queries [q0, q1) and keys [k0, k1) are EMPTY or FULL.

        MIXED means neither, or not known. Boxes are not empty and lie inside the mask.
        """
        shape = torch.broadcast_shapes(*(x.shape for x in (q0, q1, k0, k1, b, h)))
        return torch.full(shape, MIXED, dtype=torch.int8, device=q0.device)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        """Integers that are equal only for boxes with the same pattern (if the same size).

        It saves the evaluation of boxes that look like another one. The default tells every box
        apart. Asked only of masks that are the same for all batch elements and heads.
        """
        return q0, k0

    def at(self, b: int, h: int) -> "Mask":
        """The mask of one batch element and head: the same for all of them."""
        return self

    def to(self, device: Device) -> "Mask":
        """The same mask, its tables (if any) on this device."""
        return self

    def check(self, q_len: int, kv_len: int) -> None:
        """Raises ValueError where the mask does not fit these lengths."""
        if self.lengths not in (None, (q_len, kv_len)):
            raise ValueError(
                f"{type(self).__name__}: q_len and kv_len are {q_len} and {kv_len}; "
                f"must be {self.lengths[0]} and {self.lengths[1]}"
            )

    @property
    def mask_mod(self) -> Predicate:
        """The predicate for torch.nn.attention.flex_attention, which takes no bound methods."""

        def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return self.predicate(b, h, q, k)

        return mask_mod

    def dense(self, q_len: int, kv_len: int, device: Device = None) -> Tensor:
        """bool [batch or 1, heads or 1, q_len, kv_len]. Tables are moved to the device."""
        sizes("dense", q_len, kv_len)
        self.check(q_len, kv_len)
        target = as_device(device)
        mask = self.to(target)
        shape = (self.batch or 1, self.heads or 1, q_len, kv_len)
        out = torch.empty(shape, dtype=torch.bool, device=target)
        b, h, q, k = (
            torch.arange(size, dtype=torch.int32, device=target).view(view)
            for size, view in zip(shape, ((-1, 1, 1, 1), (-1, 1, 1), (-1, 1), (-1,)), strict=True)
        )
        rows = max(1, CHUNK // (shape[0] * shape[1] * kv_len))
        for start in range(0, q_len, rows):
            part = slice(start, start + rows)
            out[:, :, part] = mask.predicate(b, h, q[part], k)
        return out

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> "Mask":
        return Not(self)


def common(what: str, values: list[T | None]) -> T | None:
    """The one value that is not None, if any; ValueError where there are two."""
    found = sorted({value for value in values if value is not None})  # type: ignore[type-var]
    if len(found) > 1:
        raise ValueError(f"masks of different {what} do not combine: {found}")
    return found[0] if found else None


@dataclass(frozen=True)
class Pair(Mask):
    """Two masks combined."""

    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        _ = self.batch, self.heads, self.lengths  # raise where they differ

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self.left, self.right

    @property
    def batch(self) -> int | None:
        return common("batch", [self.left.batch, self.right.batch])

    @property
    def heads(self) -> int | None:
        return common("heads", [self.left.heads, self.right.heads])

    @property
    def lengths(self) -> tuple[int, int] | None:
        return common("lengths", [self.left.lengths, self.right.lengths])

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        zero = torch.zeros((), dtype=q0.dtype, device=q0.device)
        columns: list[Tensor] = []
        for mask in (self.left, self.right):
            kind = mask.classify(q0, q1, k0, k1, zero, zero)
            # Where this half is empty or full, its signature does not matter.
            parts = mask.signature(q0, q1, k0, k1)
            columns += [kind, *(torch.where(kind == MIXED, part, 0) for part in parts)]
        return tuple(columns)

    def at(self, b: int, h: int) -> Mask:
        left, right = self.left.at(b, h), self.right.at(b, h)
        unchanged = left is self.left and right is self.right
        return self if unchanged else type(self)(left, right)

    def to(self, device: Device) -> Mask:
        return type(self)(self.left.to(device), self.right.to(device))

    def check(self, q_len: int, kv_len: int) -> None:
        self.left.check(q_len, kv_len)
        self.right.check(q_len, kv_len)


class And(Pair):
    """What both allow: `left & right`."""

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left.predicate(b, h, q, k) & self.right.predicate(b, h, q, k)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        box = (q0, q1, k0, k1, b, h)
        return torch.minimum(self.left.classify(*box), self.right.classify(*box))


class Or(Pair):
    """What one of them allows: `left | right`."""

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.left.predicate(b, h, q, k) | self.right.predicate(b, h, q, k)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        box = (q0, q1, k0, k1, b, h)
        return torch.maximum(self.left.classify(*box), self.right.classify(*box))


@dataclass(frozen=True)
class Not(Mask):
    """What the other does not allow: `~mask`."""

    mask: Mask

    @property
    def parts(self) -> tuple[Mask, ...]:
        return (self.mask,)

    @property
    def batch(self) -> int | None:
        return self.mask.batch

    @property
    def heads(self) -> int | None:
        return self.mask.heads

    @property
    def lengths(self) -> tuple[int, int] | None:
        return self.mask.lengths

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ~self.mask.predicate(b, h, q, k)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return FULL - self.mask.classify(q0, q1, k0, k1, b, h)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return self.mask.signature(q0, q1, k0, k1)

    def at(self, b: int, h: int) -> Mask:
        mask = self.mask.at(b, h)
        return self if mask is self.mask else Not(mask)

    def to(self, device: Device) -> Mask:
        return Not(self.mask.to(device))

    def check(self, q_len: int, kv_len: int) -> None:
        self.mask.check(q_len, kv_len)

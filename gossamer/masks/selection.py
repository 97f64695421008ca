"""Another mask for each head or each batch element."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.masks.base import Device, Mask, common


def per_head(masks: Sequence[Mask]) -> "PerHead":
    """Query head h has masks[h]."""
    return PerHead(_checked("per_head", masks))


def per_batch(masks: Sequence[Mask]) -> "PerBatch":
    """Batch element b has masks[b]."""
    return PerBatch(_checked("per_batch", masks))


def _checked(name: str, masks: Any) -> tuple[Mask, ...]:
    if isinstance(masks, Mask) or not isinstance(masks, Iterable):
        raise TypeError(f"{name}: {type(masks).__name__}; must be a list of masks")
    found = tuple(masks)
    for mask in found:
        if not isinstance(mask, Mask):
            raise TypeError(f"{name}: {type(mask).__name__} in the list; must be masks")
    if not found:
        raise ValueError(f"{name}: the list is empty; must have at least 1 mask")
    return found


@dataclass(frozen=True)
class _Selection(Mask):
    """What per_head and per_batch share."""

    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        _ = self.batch, self.heads, self.lengths  # raise where they differ

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self.masks

    @property
    def lengths(self) -> tuple[int, int] | None:
        return common("lengths", [mask.lengths for mask in self.masks])

    def choose(self, index: Tensor, results: dict[Mask, Tensor]) -> Tensor:
        """The result of the mask that each index has."""
        found: Tensor | None = None
        for mask, result in results.items():
            if found is None:
                found = result
                continue
            mine = index < 0
            for place, other in enumerate(self.masks):
                if other == mask:
                    mine = mine | (index == place)
            found = torch.where(mine, result, found)
        assert found is not None, "there is at least one mask"
        return found

    def to(self, device: Device) -> Mask:
        return type(self)(tuple(mask.to(device) for mask in self.masks))

    def check(self, q_len: int, kv_len: int) -> None:
        for mask in dict.fromkeys(self.masks):
            mask.check(q_len, kv_len)


class PerHead(_Selection):
    """Query head h has masks[h]."""

    @property
    def heads(self) -> int:
        if any(mask.heads is not None for mask in self.masks):
            raise ValueError("per_head: a mask is per head already; must be the same for all heads")
        return len(self.masks)

    @property
    def batch(self) -> int | None:
        return common("batch", [mask.batch for mask in self.masks])

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.choose(h, {m: m.predicate(b, h, q, k) for m in dict.fromkeys(self.masks)})

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        box = (q0, q1, k0, k1, b, h)
        return self.choose(h, {m: m.classify(*box) for m in dict.fromkeys(self.masks)})

    def at(self, b: int, h: int) -> Mask:
        return self.masks[h].at(b, 0)


class PerBatch(_Selection):
    """Batch element b has masks[b]."""

    @property
    def batch(self) -> int:
        if any(mask.batch is not None for mask in self.masks):
            raise ValueError("per_batch: a mask is per batch already; must be the same for all")
        return len(self.masks)

    @property
    def heads(self) -> int | None:
        return common("heads", [mask.heads for mask in self.masks])

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.choose(b, {m: m.predicate(b, h, q, k) for m in dict.fromkeys(self.masks)})

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        box = (q0, q1, k0, k1, b, h)
        return self.choose(b, {m: m.classify(*box) for m in dict.fromkeys(self.masks)})

    def at(self, b: int, h: int) -> Mask:
        return self.masks[b].at(0, h)

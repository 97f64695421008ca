"""Helpers to write masks: those of the distance q - k alone, and those made of other masks."""

import copy
from typing import Any, Self

import torch
from torch import Tensor

from gossamer.masks.base import Device, Mask


def kinds(empty: Tensor, full: Tensor) -> Tensor:
    """EMPTY, MIXED and FULL from two bool tensors; never both true."""
    return full.to(torch.int8) - empty.to(torch.int8) + 1


def with_attributes(mask: Any, **attributes: Any) -> Any:
    """A copy of a frozen mask with other tables; its parameters stay."""
    clone = copy.copy(mask)
    for name, value in attributes.items():
        object.__setattr__(clone, name, value)
    return clone


class Diagonal(Mask):
    """A mask that depends on the distance q - k alone."""

    def sees(self, distance: Tensor) -> Tensor:
        raise NotImplementedError

    def span(self, low: Tensor, high: Tensor) -> Tensor:
        """int8 kinds of boxes with distances low..high, both included."""
        raise NotImplementedError

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.sees(q - k)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return self.span(q0 - (k1 - 1), (q1 - 1) - k0)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return (q0 - k0,)


class Composite(Mask):
    """A mask made of others; `compose` is called once, by __post_init__."""

    body: Mask

    def compose(self, body: Mask) -> None:
        object.__setattr__(self, "body", body)  # no field: parameters alone make masks equal

    @property
    def lengths(self) -> tuple[int, int] | None:
        return self.body.lengths

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return self.body.predicate(b, h, q, k)

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        return self.body.classify(q0, q1, k0, k1, b, h)

    def signature(self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
        return self.body.signature(q0, q1, k0, k1)

    def to(self, device: Device) -> Self:
        clone: Self = with_attributes(self, body=self.body.to(device))
        return clone

    def check(self, q_len: int, kv_len: int) -> None:
        self.body.check(q_len, kv_len)

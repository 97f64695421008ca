"""Any mask, as a tensor."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.masks.base import Device, Mask
from gossamer.masks.checks import same_device


@dataclass(frozen=True, eq=False)
class DenseMask(Mask):
    """A bool tensor [q_len, kv_len], [heads, q_len, kv_len] or [batch, heads, q_len, kv_len].

    A batch or heads of 1 is the same for all. Two dense masks are equal only if they are the same
    object. `dense`, `TileMap.build` and `to` move it to the device they are asked for.
    """

    allowed: Tensor

    def __post_init__(self) -> None:
        allowed = self.allowed
        if not isinstance(allowed, Tensor):
            raise TypeError(f"DenseMask: {type(allowed).__name__}; must be a torch.Tensor")
        if allowed.dtype is not torch.bool:
            raise TypeError(f"DenseMask: dtype is {allowed.dtype}; must be torch.bool")
        if not 2 <= allowed.dim() <= 4 or 0 in allowed.shape:
            raise ValueError(
                f"DenseMask: shape is {list(allowed.shape)}; "
                "must be [batch, heads, q_len, kv_len], the first two optional, none of them 0"
            )
        object.__setattr__(self, "allowed", allowed[(None,) * (4 - allowed.dim())])

    def __repr__(self) -> str:
        return f"DenseMask({list(self.allowed.shape)}, {self.allowed.device})"

    @property
    def batch(self) -> int | None:
        return self.allowed.shape[0] if self.allowed.shape[0] > 1 else None

    @property
    def heads(self) -> int | None:
        return self.allowed.shape[1] if self.allowed.shape[1] > 1 else None

    @property
    def lengths(self) -> tuple[int, int]:
        return self.allowed.shape[2], self.allowed.shape[3]

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same_device("DenseMask", self.allowed, q)
        found = self.allowed
        if self.batch is None and self.heads is None:
            return found[0, 0][q, k]
        if self.batch is None:
            return found[0][h, q, k]
        return found[:, 0][b, q, k] if self.heads is None else found[b, h, q, k]

    def at(self, b: int, h: int) -> Mask:
        if self.batch is None and self.heads is None:
            return self
        return DenseMask(self.allowed[b if self.batch else 0, h if self.heads else 0])

    def to(self, device: Device) -> Mask:
        return DenseMask(self.allowed.to(device))

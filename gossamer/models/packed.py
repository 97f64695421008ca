"""Quantized matrices in the formats that the engine holds, whatever file they come from."""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from gossamer.models.source import Part, StoredTensor
from gossamer.ops.dequantize_gguf import dequantize_gguf
from gossamer.ops.gguf import TYPES
from gossamer.ops.linear_int4 import RUN, dequantized, unpacked

BLOCK = 128  # rows, and columns, that share a scale of fp8 blocks
TINY = 2.0**-14  # the smallest scale: the smallest normal float16
SHRINKS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8, 0.75)  # of the range of a group


class _Movable:
    """Tensors of a dataclass on another device."""

    def to(self, device: torch.device) -> Self:
        moved = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in vars(self).items()
        }
        return type(self)(**moved)


@dataclass(frozen=True, eq=False)
class GgufRows(_Movable):
    """Blocks of a GGUF file. kind: one of gossamer.ops.gguf.TYPES. rows: uint8 [n, bytes]."""

    kind: str
    rows: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        block = TYPES[self.kind]
        return self.rows.shape[0], self.rows.shape[1] // block.bytes * block.weights

    def dequantized(self) -> Tensor:
        """float32 [n, k]."""
        return dequantize_gguf(self.rows, self.kind)


@dataclass(frozen=True, eq=False)
class Int4Rows(_Movable):
    """4 bits per weight: weight = (code - zero) * scale.

    codes: uint8 [n, k / 2]. In each 32 weights of a row, byte i (0 to 15) holds weight i in its
    low half and weight i + 16 in its high half. scale, zero: float16 [n, k / group]; group is a
    multiple of 32 that divides k.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor

    @classmethod
    def pack(cls, codes: Tensor, scale: Tensor, zero: Tensor) -> Self:
        """From uint8 [n, k] with a code in each byte, 0 to 15."""
        low, high = codes.unflatten(1, (-1, 2, RUN // 2)).unbind(2)
        return cls((low | high << 4).flatten(1), scale, zero)

    @classmethod
    def quantize(cls, weight: Tensor, group: int = RUN, *, whole_zeros: bool = False) -> Self:
        """Of floats [n, k], rounded to nearest; ValueError for a k that groups do not divide.

        The range of each group is shrunk by what makes its squared error smallest: weights at
        both ends are clipped for finer steps of all others. whole_zeros: zeros are codes, 0 to 15,
        as files have them.
        """
        n, k = weight.shape
        if k % group:
            raise ValueError(f"rows have {k} weights; must be a multiple of {group} for int4")
        if not torch.isfinite(weight).all():
            row = int((~torch.isfinite(weight)).any(1).nonzero()[0])
            raise ValueError(f"row {row} has NaN or infinity")
        x = weight.float().reshape(n, -1, group)
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        if whole_zeros:
            low, high = low.clamp_max(0), high.clamp_min(0)
        # Zeros stay below 2,048, where float16 still tells whole steps apart.
        least = (torch.maximum(high, -low) / 2048).clamp_min(TINY)
        best = torch.full_like(low, torch.inf)
        scale, zero = torch.ones_like(low), torch.zeros_like(low)
        for shrink in SHRINKS:
            # Rounded first, so that codes are the best ones for the scales that are kept.
            step = torch.maximum((high - low) * (shrink / 15), least).half().float()
            shift = (-(low + (high - low) * (0.5 - shrink / 2)) / step).half().float()
            shift = shift.round().clamp(0, 15) if whole_zeros else shift
            error = (_rounded(x, step, shift) - x).square_().sum(-1, keepdim=True)
            better = error < best
            best = torch.where(better, error, best)
            scale, zero = torch.where(better, step, scale), torch.where(better, shift, zero)
        codes = (x / scale + zero).round().clamp(0, 15).to(torch.uint8)
        return cls.pack(codes.reshape(n, k), scale[..., 0].half(), zero[..., 0].half())

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def group(self) -> int:
        return self.shape[1] // self.scale.shape[1]

    def unpacked(self) -> Tensor:
        """uint8 [n, k] with a code in each byte."""
        return unpacked(self.codes)

    def dequantized(self) -> Tensor:
        """float32 [n, k]."""
        return dequantized(self.codes, self.scale, self.zero)


@dataclass(frozen=True, eq=False)
class Int8Rows(_Movable):
    """8 bits per weight: weight = code * scale. codes: int8 [n, k]. scale: float32 [n, 1]."""

    codes: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantized(self) -> Tensor:
        """float32 [n, k]."""
        return self.codes.float() * self.scale


@dataclass(frozen=True, eq=False)
class Fp8Rows(_Movable):
    """weight = code * scale. codes: float8_e4m3fn [n, k].

    scale: float32 [1], [n, 1] (one for each row) or [ceil(n / 128), ceil(k / 128)] (one for each
    block of 128 x 128), as linear_fp8 takes them.
    """

    codes: Tensor
    scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantized(self) -> Tensor:
        """float32 [n, k]."""
        weight = self.codes.float()
        if self.scale.dim() == 1 or tuple(self.scale.shape) == (len(weight), 1):
            return weight.mul_(self.scale)
        return scale_blocks(weight, self.scale)


Packed = GgufRows | Int4Rows | Int8Rows | Fp8Rows


@runtime_checkable
class PackedTensor(StoredTensor, Protocol):
    """A matrix [out_features, in_features] of a source that is quantized already.

    Indexing dequantizes that part to float32.
    """

    def packed(self, part: Part, /) -> Packed:
        """The same part in the engine's format, not dequantized.

        Raises ValueError, naming the tensor, for a part that cuts through a group or a block, and
        for scales that the format cannot hold.
        """
        ...


def scale_blocks(weight: Tensor, scale: Tensor, top: int = 0, left: int = 0) -> Tensor:
    """The weight [n, k] times scales of blocks, in place.

    top, left: how many rows and columns of the first blocks are not there.
    """
    across = scale.repeat_interleave(BLOCK, 1)[:, left : left + weight.shape[1]]
    for block, row in enumerate(across):
        first = block * BLOCK - top
        weight[max(first, 0) : first + BLOCK] *= row
    return weight


def _rounded(x: Tensor, step: Tensor, shift: Tensor) -> Tensor:
    return (x.div(step).add_(shift).round_().clamp_(0, 15) - shift).mul_(step)

"""Quantized matrices in the formats that the engine holds, whatever file they come from."""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from gossamer.models.source import Part, StoredTensor

RUN = 32  # weights of a row whose 4-bit codes lie in 16 bytes
BLOCK = 128  # rows, and columns, that share a scale of fp8 blocks


@dataclass(frozen=True, eq=False)
class Int4Rows:
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

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], 2 * self.codes.shape[1]

    @property
    def group(self) -> int:
        return self.shape[1] // self.scale.shape[1]

    def dequantized(self) -> Tensor:
        """float32 [n, k]."""
        runs = self.codes.unflatten(1, (-1, RUN // 2))
        codes = torch.cat((runs & 15, runs >> 4), 2).flatten(1).float()
        weight: Tensor = codes.unflatten(1, (-1, self.group))
        weight -= self.zero.float()[..., None]
        weight *= self.scale.float()[..., None]
        return weight.flatten(1)


@dataclass(frozen=True, eq=False)
class Int8Rows:
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
class Fp8Rows:
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


Packed = Int4Rows | Int8Rows | Fp8Rows


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

"""Quantized matrices of files, read part by part."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.models.packed import (
    BLOCK,
    Fp8Rows,
    Int4Rows,
    Int8Rows,
    Packed,
    scale_blocks,
)
from gossamer.models.source import Part
from gossamer.ops.linear_int4 import RUN

NATURAL = tuple(range(8))
MIDDLE = 8  # the code of a weight of 0 where a scheme is symmetric


class Stored(Protocol):
    """A tensor of a safetensors file. dtype: in the file's words, like "F16"."""

    @property
    def path(self) -> Path: ...

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, part: Part, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Nibbles:
    """A matrix of 4-bit codes, 8 of them in each int32.

    dim: the dimension in which 8 neighbours share a word. order: which 4 bits of the word, from
    the lowest, each of them is in.
    """

    stored: Stored
    dim: int
    order: tuple[int, ...] = NATURAL

    def read(self, rows: slice, columns: slice) -> Tensor:
        """uint8, one code in each byte."""
        along = (rows, columns)[self.dim]
        held = slice(along.start // 8, -(-along.stop // 8))
        found = self.stored[held, columns].T if self.dim == 0 else self.stored[rows, held]
        # clone: a column of single words is contiguous in any strides, and `view` minds them.
        pairs = found.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        pairs = pairs.unflatten(1, (-1, 4))  # the lowest byte first
        codes: Tensor = pairs.new_empty(*pairs.shape[:2], 8)
        for element, place in enumerate(self.order):  # 3 times as fast as a gather of all
            byte = pairs[..., place // 2]
            codes[..., element] = byte >> 4 if place % 2 else byte & 15
        first = along.start - 8 * held.start
        found = codes.flatten(1)[:, first : first + along.stop - along.start]
        return found.T if self.dim == 0 else found


def words(codes: Tensor) -> Tensor:
    """uint8 [a, b] of codes 0 to 15 as int32 [a, ceil(b / 8)], in natural order, then zeros."""
    low, high = F.pad(codes, (0, -codes.shape[1] % 8)).unflatten(1, (-1, 2)).unbind(2)
    packed: Tensor = (low | high << 4).contiguous().view(torch.int32)
    return packed


@dataclass(frozen=True, eq=False)
class Int4Matrix:
    """See PackedTensor. name: Hugging Face's, of the weight.

    scale: [n, groups]; zero: codes of the same shape, to which `zero_shift` is added, or None for
    8s. transposed: all three are the other way round, [k, n] and [groups, n].
    """

    name: str
    shape: tuple[int, int]
    codes: Nibbles
    scale: Stored
    zero: Nibbles | None = None
    zero_shift: int = 0
    transposed: bool = False

    @property
    def group(self) -> int:
        return self.shape[1] // self.scale.shape[0 if self.transposed else 1]

    def __getitem__(self, part: Part) -> Tensor:
        rows, columns = _bounds(self.shape, part)
        scale, zero = self._scales(rows, columns)
        first, last = columns.start, columns.stop
        if self.group < self.shape[1]:  # groups as a whole; where a row is one, part of it will do
            first, last = first // self.group * self.group, -(-last // self.group) * self.group
        weight = self._turned(self.codes, rows, slice(first, last)).float()
        groups = weight.unflatten(1, (scale.shape[1], -1))
        groups -= zero.float()[..., None]
        groups *= scale[..., None]
        return weight[:, columns.start - first : columns.stop - first]

    def packed(self, part: Part) -> Packed:
        rows, columns = _bounds(self.shape, part)
        # Where a row is one group, the part of it is one as well.
        unit = RUN if self.group == self.shape[1] else self.group
        if columns.start % unit or columns.stop % unit:
            raise ValueError(
                f"columns {columns.start} to {columns.stop} of {self.name}; must start and end at "
                f"multiples of {unit}"
            )
        scale, zero = self._scales(rows, columns)
        half = scale.half()
        if not half.isfinite().all():
            raise ValueError(
                f"{self.scale.name} has a scale of {float(scale.abs().max()):g}; must be at most "
                f"{torch.finfo(torch.float16).max:g} in size for float16"
            )
        codes = self._turned(self.codes, rows, columns)
        return Int4Rows.pack(codes, half.contiguous(), zero.half().contiguous())

    def _scales(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Scales as float32 and zeros, of all groups that the columns touch."""
        groups = slice(columns.start // self.group, -(-columns.stop // self.group))
        if self.transposed:
            scale = _finite(self.scale, self.scale[groups, rows]).T
        else:
            scale = _finite(self.scale, self.scale[rows, groups])
        if self.zero is None:
            return scale, torch.full_like(scale, MIDDLE)
        return scale, self._turned(self.zero, rows, groups) + self.zero_shift

    def _turned(self, nibbles: Nibbles, rows: slice, columns: slice) -> Tensor:
        """Codes as [rows, columns] of the weight."""
        if self.transposed:
            return nibbles.read(columns, rows).T.contiguous()
        return nibbles.read(rows, columns)


@dataclass(frozen=True, eq=False)
class ScaledMatrix:
    """See PackedTensor: int8 or float8 codes times scales.

    strategy: "tensor" (one scale), "channel" (one for each row) or "block" (one for each 128 rows
    and 128 columns).
    """

    name: str
    codes: Stored
    scale: Stored
    strategy: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def __getitem__(self, part: Part) -> Tensor:
        rows, columns = _bounds(self.shape, part)
        scale = self._scale(rows, columns)
        weight = self.codes[rows, columns].float()
        if self.strategy == "block":
            return scale_blocks(weight, scale, rows.start % BLOCK, columns.start % BLOCK)
        return weight.mul_(scale)

    def packed(self, part: Part) -> Packed:
        rows, columns = _bounds(self.shape, part)
        if self.strategy == "block":
            for what, cut, end in zip(
                ("rows", "columns"), (rows, columns), self.shape, strict=True
            ):
                if cut.start % BLOCK or (cut.stop % BLOCK and cut.stop != end):
                    raise ValueError(
                        f"{what} {cut.start} to {cut.stop} of {self.name}; must start and end at "
                        f"multiples of {BLOCK}"
                    )
        kind = Int8Rows if self.codes.dtype == "I8" else Fp8Rows
        return kind(self.codes[rows, columns].contiguous(), self._scale(rows, columns).contiguous())

    def _scale(self, rows: slice, columns: slice) -> Tensor:
        """[1], [n, 1] or the blocks that the part touches."""
        if self.strategy == "tensor":
            return _finite(self.scale, whole(self.scale)).reshape(1)
        if self.strategy == "channel":
            return _finite(self.scale, self.scale[(rows,)]).reshape(-1, 1)
        down, across = (slice(s.start // BLOCK, -(-s.stop // BLOCK)) for s in (rows, columns))
        return _finite(self.scale, self.scale[down, across])


def whole(stored: Stored) -> Tensor:
    """All of it, which may be a single number."""
    return stored[(slice(None),) if len(stored.shape) else ()]


def _bounds(shape: tuple[int, int], part: Part) -> tuple[slice, slice]:
    """Rows and columns of a part, which may leave out columns."""
    rows, columns = (range(n)[s] for n, s in zip(shape, (*part, slice(None))[:2], strict=True))
    return slice(rows.start, rows.stop), slice(columns.start, columns.stop)


def _finite(stored: Stored, scale: Tensor) -> Tensor:
    """As float32."""
    scale = scale.float()
    if not scale.isfinite().all():
        raise ValueError(
            f"{stored.path}: {stored.name} has scales that are NaN or infinite; must be finite"
        )
    return scale

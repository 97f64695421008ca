"""Weight matrices in few bits: rows of several tensors one below the other, and their GEMM."""

from abc import ABC, abstractmethod
from math import gcd
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.models.packed import Fp8Rows, GgufRows, Int4Rows, Int8Rows, Packed, PackedTensor
from gossamer.models.source import Part, StoredTensor
from gossamer.ops import (
    OPS,
    dequantize_gguf,
    linear,
    linear_fp8,
    linear_int4,
    linear_int8,
    linear_int8_weights,
)
from gossamer.ops.linear_checks import GROUP
from gossamer.ops.linear_int4 import RUN
from gossamer.ops.quantize_fp8 import quantize_fp8
from gossamer.ops.quantize_int8 import quantize_int8

# Up to this many rows on a CPU, `linear` is 1.4 to 4 times as fast as torch (one core of a Zen 4
# EPYC). There it stays ahead up to about 128 rows; CPUs with matrix units may cross earlier.
SKINNY_ROWS = 16


# With the names of types as one string, joined once.
_linear_gguf, _gated_mlp_gguf = OPS["linear_gguf"], OPS["gated_mlp_gguf"]


class PackedMatrix(ABC):
    """A matrix [n, k] of which tensors of a checkpoint (q, k and v, say) are the rows.

    rows: how many each of them brings. Filled by `put`; complete when all are there.
    """

    stored: ClassVar[type]  # what tensors are put in as
    run: ClassVar[int] = 1  # k must be a multiple of this

    def __init__(self, rows: tuple[int, ...], columns: int, device: torch.device) -> None:
        self.shape, self.device = (sum(rows), columns), device
        self._parts: list[Any] = [None] * len(rows)

    def put(self, index: int, part: Packed) -> None:
        """The rows of tensor `index`, moved to the device."""
        self._parts[index] = part.to(self.device)
        if all(p is not None for p in self._parts):
            self._join(self._parts)
            self._parts = [None] * len(self._parts)

    @classmethod
    @abstractmethod
    def quantized(cls, weight: Tensor) -> Packed:
        """Of floats [n, k]; ValueError where they are not finite or k does not fit."""

    @abstractmethod
    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [rows, k] @ weight.T + bias, as [rows, n] of x's dtype."""

    @abstractmethod
    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows [len(ids), k], as an embedding looks them up."""

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @abstractmethod
    def _join(self, parts: list[Any]) -> None:
        """Keep all parts, in the form that `multiply` wants."""

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]


class GgufMatrix(PackedMatrix):
    """In the blocks of a GGUF file, each tensor of its own type; mapped files stay mapped."""

    stored, run = GgufRows, RUN

    @classmethod
    def quantized(cls, weight: Tensor) -> GgufRows:
        """What is not stored in blocks (a V projection in another basis) is float16 here."""
        return GgufRows("f16", weight.to(torch.float16).contiguous().view(torch.uint8))

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        found: Tensor = _linear_gguf(x, self.weights, self._types, bias)
        return found

    def gated(
        self,
        x: Tensor,
        bias: Tensor | None,
        down: "GgufMatrix",
        down_bias: Tensor | None,
    ) -> Tensor:
        """An MLP in one call: this matrix is gate and up."""
        args = (x, self.weights, self._types, down.weights, down._types, bias, down_bias)
        found: Tensor = _gated_mlp_gguf(*args)
        return found

    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return dequantize_gguf(self.weights[0][ids], self.types[0], dtype)

    @property
    def nbytes(self) -> int:
        return sum(rows.shape[0] * rows.shape[1] for rows in self.weights)

    def _join(self, parts: list[Any]) -> None:
        self.weights = [part.rows for part in parts]
        self.types = [part.kind for part in parts]
        self._types = ",".join(self.types)


class _Scaled(PackedMatrix):
    """Codes [n, k] of 8 bits with their scales."""

    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return (self.codes[ids].float() * self.scale[ids]).to(dtype)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes

    def _join(self, parts: list[Any]) -> None:
        self.codes = torch.cat([part.codes for part in parts]).contiguous()
        self.scale = torch.cat([part.scale for part in parts]).contiguous()


class Int8Matrix(_Scaled):
    """int8 with a scale for each row; on a GPU activations are quantized token by token."""

    stored = Int8Rows

    @classmethod
    def quantized(cls, weight: Tensor) -> Int8Rows:
        return Int8Rows(*quantize_int8(weight))

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.is_cpu:
            return linear_int8_weights(x, self.codes, self.scale, bias)
        codes, scale = torch.ops.gossamer.quantize_int8(x)  # without a look at NaN on a GPU
        return linear_int8(codes, scale, self.codes, self.scale, bias, x.dtype)


class Fp8Matrix(_Scaled):
    """fp8 with a scale for each row, or for each block of 128 x 128 where a file has those."""

    stored = Fp8Rows

    @classmethod
    def quantized(cls, weight: Tensor) -> Fp8Rows:
        return Fp8Rows(*quantize_fp8(weight, "row"))

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        codes, scale = torch.ops.gossamer.quantize_fp8(x, "group" if self.blocks else "row")
        return linear_fp8(codes, scale, self.codes, self.scale, bias, x.dtype)

    def _join(self, parts: list[Any]) -> None:
        scales = [part.scale for part in parts]
        self.blocks = all(s.dim() == 2 and s.shape[1] != 1 for s in scales) and all(
            part.shape[0] % GROUP == 0 for part in parts[:-1]
        )
        super()._join(parts if self.blocks else [self._by_row(part) for part in parts])

    def _by_row(self, part: Fp8Rows) -> Fp8Rows:
        """One scale for all becomes one for each row; blocks that are cut are quantized anew."""
        rows = part.shape[0]
        if part.scale.numel() == 1:
            return Fp8Rows(part.codes, part.scale.reshape(1, 1).repeat(rows, 1))
        return part if part.scale.shape[1] == 1 else self.quantized(part.dequantized())


class Int4Matrix(PackedMatrix):
    """4 bits with a scale and a zero for each group of a row; activations stay as they are."""

    stored, run = Int4Rows, RUN

    @classmethod
    def quantized(cls, weight: Tensor) -> Int4Rows:
        return Int4Rows.quantize(weight)

    def multiply(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return linear_int4(x, self.weight.codes, self.weight.scale, self.weight.zero, bias)

    def take(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        w = self.weight
        return Int4Rows(w.codes[ids], w.scale[ids], w.zero[ids]).dequantized().to(dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.codes.nbytes + self.weight.scale.nbytes + self.weight.zero.nbytes

    def _join(self, parts: list[Any]) -> None:
        group = gcd(*(part.group for part in parts))
        self.weight = Int4Rows(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scale.repeat_interleave(part.group // group, 1) for part in parts]),
            torch.cat([part.zero.repeat_interleave(part.group // group, 1) for part in parts]),
        )


Matrix = Tensor | PackedMatrix


def multiply(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """x [rows, k] @ weight.T + bias: of codes as they are, or by our GEMM for few rows on a CPU."""
    if isinstance(weight, PackedMatrix):
        return weight.multiply(x, bias)
    skinny = x.is_cpu and x.shape[0] <= SKINNY_ROWS
    return linear(x, weight, bias) if skinny else F.linear(x, weight, bias)


def embed(ids: Tensor, weight: Matrix, dtype: torch.dtype) -> Tensor:
    """Rows of an embedding."""
    if isinstance(weight, PackedMatrix):
        return weight.take(ids, dtype)
    return F.embedding(ids, weight)


def stored_as(kind: type, tensor: StoredTensor, part: Part) -> Packed | None:
    """A part of a stored tensor in this format, if it is kept so and can be cut there."""
    if not isinstance(tensor, PackedTensor):
        return None
    try:
        found = tensor.packed(part)
    except ValueError:  # cuts through a group: its numbers are quantized anew
        return None
    return found if isinstance(found, kind) else None

"""Rows in the blocks of GGUF files as numbers."""

import torch
from torch import Tensor

from gossamer.ops.checks import FLOAT_DTYPES, dtype_name
from gossamer.ops.gguf import TYPES, dequantized, row_length
from gossamer.ops.linear_gguf import example_rows
from gossamer.ops.registry import Op


def dequantize_gguf(
    weight: Tensor, kind: str, dtype: torch.dtype = torch.float32, *, backend: str | None = None
) -> Tensor:
    """Weights [n, k] of `dtype` (float32, float16 or bfloat16), of rows of blocks of a GGUF type.

    weight: uint8 [n, bytes], rows of whole blocks side by side, apart as they like; an embedding
    that is looked up, say. kind: one of gossamer.ops.gguf.TYPES. Computed in float32, rounded once.
    Returns a contiguous tensor. Raises TypeError (dtype) or ValueError (shape, type).
    """
    result: Tensor = _op(weight, kind, dtype, backend=backend)
    return result


def _reference(weight: Tensor, type: str, dtype: torch.dtype) -> Tensor:
    return dequantized(weight, type).to(dtype)


def _check(weight: Tensor, type: str, dtype: torch.dtype) -> None:
    row_length("dequantize_gguf", "weight", weight, type)
    if dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"dequantize_gguf: dtype is {dtype_name(dtype)}; "
            "must be one of float32, float16, bfloat16"
        )


def _fake(weight: Tensor, type: str, dtype: torch.dtype) -> Tensor:
    k = weight.shape[1] // TYPES[type].bytes * TYPES[type].weights
    return weight.new_empty((weight.shape[0], k), dtype=dtype)


_op = Op(
    "dequantize_gguf",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=lambda make: (
        example_rows(5, 64, "q4_1", make(1).device),
        "q4_1",
        torch.float32,
    ),
    native_backends=("cpu",),
)

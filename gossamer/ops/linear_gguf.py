"""GEMM with weights in the blocks of GGUF files, as they lie in the file."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_like, check_shape, check_tensor
from gossamer.ops.gguf import TYPES, dequantized, row_length
from gossamer.ops.registry import Op


def linear_gguf(
    x: Tensor,
    weights: Sequence[Tensor],
    types: Sequence[str],
    bias: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """x @ weight.T + bias as [..., n], for weights one below the other, each of a GGUF type.

    x: [..., k] of float32, float16 or bfloat16, any strides. weights: uint8 [n_i, bytes], rows of
    whole blocks side by side, of k weights (k a multiple of 32); rows may be apart (part of a
    wider matrix, a mapped file). types: of each, one of gossamer.ops.gguf.TYPES. bias: [n] of x's
    dtype. x stays as it is, weights are expanded to float32, sums are in float32 and rounded once
    (more than 16 rows: as torch's GEMM of x's dtype does it). On a CPU up to 16 rows are for the
    speed of the bytes, and a row's result does not depend on the others by a bit. There, with
    AVX-512's VNNI, q4_0, q4_1 and q8_0 are multiplied in integers: x is rounded to 16 bits of the
    largest number of each 32, and a row with NaN or infinity becomes NaN.
    Returns a contiguous tensor. Inference only. Raises TypeError (dtype) or ValueError (shape,
    type, device).
    """
    result: Tensor = _op(x, list(weights), ",".join(types), bias, backend=backend)
    return result


def _reference(
    x: Tensor, weights: Sequence[Tensor], types: str, bias: Tensor | None = None
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    result = x.to(wide) @ expanded(weights, types).to(wide).T
    if bias is not None:
        result = result + bias.to(wide)
    return result.to(x.dtype).contiguous()


def _check(x: Tensor, weights: Sequence[Tensor], types: str, bias: Tensor | None = None) -> None:
    op = "linear_gguf"
    check_tensor(op, "x", x)
    check_has_last_dim(op, "x", x)
    check_matrix(op, "weights", weights, types, x, x.shape[-1], "in x")
    if bias is not None:
        check_like(op, "bias", bias, "x", x)
        check_shape(op, "bias", bias, (count_rows(weights),), "one for each row of weights")


def check_matrix(
    op: str, name: str, weights: Sequence[Tensor], types: str, x: Tensor, k: int, of: str
) -> None:
    """Rows of k weights on the device of x, a type for each tensor."""
    kinds = types.split(",")
    prefix = "" if name == "weights" else f"{name}_"
    if not weights or len(weights) != len(kinds):
        raise ValueError(
            f"{op}: {prefix}types has {len(kinds)} names and {name} {len(weights)} tensors; "
            "must be one for each, at least 1"
        )
    for i, (rows, kind) in enumerate(zip(weights, kinds, strict=True)):
        found = row_length(op, f"{name}[{i}]", rows, kind)
        if rows.device != x.device:
            raise ValueError(
                f"{op}: {name}[{i}] is on {rows.device}; must be on {x.device}, the device of x"
            )
        if found != k:
            raise ValueError(f"{op}: {name}[{i}] has rows of {found} weights; must be {k}, as {of}")


def count_rows(weights: Sequence[Tensor]) -> int:
    return sum(rows.shape[0] for rows in weights)


def expanded(weights: Sequence[Tensor], types: str) -> Tensor:
    """float32 [n, k]."""
    pairs = zip(weights, types.split(","), strict=True)
    return torch.cat([dequantized(rows, kind) for rows, kind in pairs])


def _fake(x: Tensor, weights: Sequence[Tensor], types: str, bias: Tensor | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], count_rows(weights)))


def example_rows(rows: int, k: int, kind: str, device: torch.device | str = "cpu") -> Tensor:
    """Blocks of small weights, none of them infinite or NaN."""
    block = TYPES[kind]
    size = rows * k // block.weights * block.bytes
    return torch.arange(size, device=device).remainder(41).to(torch.uint8).view(rows, -1)


def _example(make: object) -> tuple[object, ...]:
    x = make(3, 64)  # type: ignore[operator]
    weights = [example_rows(n, 64, kind, x.device) for n, kind in ((20, "q4_1"), (4, "q8_0"))]
    return x, weights, "q4_1,q8_0", None


_op = Op(
    "linear_gguf",
    reference=_reference,
    check=_check,
    fake=_fake,
    example=_example,
    native_backends=("cpu",),
    # Of results of the size of 1, of terms of the size of 10: x in 16 bits.
    tolerance={torch.float32: 3e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2},
)

"""Attention under a mask that lists the keys of every query: for very sparse masks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.arguments import MaskedRowsArguments, named
from gossamer.ops.checks import check_floats, check_range, check_shape
from gossamer.ops.masked_checks import (
    check_bias,
    check_groups,
    check_heads,
    check_numbers,
    check_offsets,
)
from gossamer.ops.masked_reference import attend
from gossamer.ops.registry import Op

OP = "masked_attention_rows"


def masked_attention_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_offsets: Tensor,
    keys: Tensor,
    bias: Tensor | None,
    batch: int,
    heads: int,
    scale: float,
    softcap: float,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`masked_attention` with the mask as lists of keys: same q, k, v and results.

    q, k, v (float32, float16 or bfloat16), bias, scale and softcap are as there. batch, heads: 1,
    or those of q where the mask differs in them. row_offsets: int32 [batch * heads * q_len + 1],
    where the keys of each query start, in the order of [batch, heads, q_len]. keys: int32,
    ascending in each list. Raises TypeError or ValueError; numbers on a GPU are not looked at by
    the host.
    """
    result: tuple[Tensor, Tensor] = _op(
        q, k, v, row_offsets, keys, bias, batch, heads, scale, softcap, backend=backend
    )
    return result


@named(MaskedRowsArguments)
def _reference(a: MaskedRowsArguments) -> tuple[Tensor, Tensor]:
    shape, device = (a.batch, a.heads, a.q.shape[2], a.k.shape[2]), a.q.device
    row = torch.arange(a.row_offsets.shape[0] - 1, device=device)
    row = row.repeat_interleave(a.row_offsets.diff().long())
    seen = torch.zeros(shape, dtype=torch.bool, device=device)
    seen.flatten(0, 2)[row, a.keys[: row.numel()].long()] = True
    return attend(a.q, a.k, a.v, seen, a.bias, a.scale, a.softcap)


@named(MaskedRowsArguments)
def _check(a: MaskedRowsArguments) -> None:
    check_heads(OP, a.q, a.k, a.v)
    check_groups(OP, a.q, a.batch, a.heads)
    check_numbers(OP, "row_offsets", a.row_offsets, a.q.device)
    check_numbers(OP, "keys", a.keys, a.q.device)
    count = a.batch * a.heads * a.q.shape[2]
    check_shape(OP, "row_offsets", a.row_offsets, (count + 1,), "one for each query and one more")
    if a.keys.dim() != 1:
        raise ValueError(f"{OP}: keys has {a.keys.dim()} dimensions; must have 1")
    if a.bias is not None:
        check_bias(OP, a.bias, a.q, a.k)
    check_floats(OP, a.scale, a.softcap)


@named(MaskedRowsArguments)
def _check_values(a: MaskedRowsArguments) -> None:
    keys = a.keys
    if keys.device.type != "cpu":
        return
    check_offsets(OP, "row_offsets", a.row_offsets, keys.shape[0], "keys")
    check_range(OP, "a key", keys, 0, a.k.shape[2])
    first = torch.zeros(keys.shape[0] + 1, dtype=torch.bool)
    first[a.row_offsets.long()] = True  # of a list
    if ((keys.diff() <= 0) & ~first[1:-1]).any():
        raise ValueError(f"{OP}: the keys of a query do not ascend; must be a list without repeats")


def _fake(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def _example(make: Callable[..., Tensor]) -> tuple[Any, ...]:
    """Every query sees itself, the first token and the one before; the first query sees nothing."""
    q = make(1, 4, 12, 64)
    lists: list[list[int]] = [[], [0, 1], *([0, i - 1, i] for i in range(2, 12))]
    offsets = torch.tensor([0, *(len(keys) for keys in lists)]).cumsum(0).int().to(q.device)
    keys = torch.tensor([key for keys in lists for key in keys], dtype=torch.int32).to(q.device)
    return q, make(1, 2, 12, 64), make(1, 2, 12, 64), offsets, keys, None, 1, 1, 0.125, 0.0


_op = Op(
    OP,
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=_fake,
    example=_example,
    native_backends=("cpu",),
    tolerance={torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3},
    triton="gossamer.kernels.masked_attention_rows:masked_attention_rows",
)

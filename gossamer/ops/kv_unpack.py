"""Blocks back into dense rows."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.kernels.arguments import KvUnpackArguments, named
from gossamer.ops import kv_codec
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.kv_block import BlockFormat
from gossamer.ops.kv_checks import (
    check_alignment,
    check_blocks,
    check_format,
    check_plain,
    check_slots,
    on_host,
)
from gossamer.ops.registry import Op


def kv_unpack(
    blocks: Tensor,
    slots: Tensor,
    fmt: BlockFormat,
    dtype: torch.dtype = torch.float16,
    *,
    backend: str | None = None,
) -> Tensor:
    """Rows [N, heads, head_dim] of `dtype` that lie in slots [N] of blocks, zero where left out.

    blocks: uint8 [num_blocks, heads, fmt.nbytes]. slots: int64, in any order, also repeated; -1 (on
    a GPU also one out of range) gives a row of zeros. code * scale + minimum in float32, where the
    product is exact, rounded to dtype.
    Raises TypeError or ValueError.
    """
    if on_host(slots, blocks):
        checked, slots = slots, slots.to(blocks.device)
        _check(blocks, slots, fmt.head_dim, fmt.keep, fmt.values, str(fmt.scales), dtype)
        check_slots("kv_unpack", checked, blocks.shape[0], unique=False)
    args = (blocks, slots, fmt.head_dim, fmt.keep, fmt.values, fmt.scales, dtype)
    result: Tensor = _op(*args, backend=backend)
    return result


@named(KvUnpackArguments)
def _reference(a: KvUnpackArguments) -> Tensor:
    fmt = BlockFormat(a.head_dim, a.keep, a.values, a.scales)
    return kv_codec.read(a.blocks, a.slots, fmt).to(a.dtype).contiguous()


@named(KvUnpackArguments)
def _check(a: KvUnpackArguments) -> None:
    op = "kv_unpack"
    if not isinstance(a.blocks, Tensor):
        raise TypeError(f"{op}: blocks is {type(a.blocks).__name__}; must be a torch.Tensor")
    fmt = check_format(op, a.head_dim, a.keep, a.values, a.scales)
    check_blocks(op, a.blocks, fmt, a.blocks.device)
    check_plain(op, "slots", a.slots, torch.int64, a.blocks.device)
    if a.slots.dim() != 1:
        raise ValueError(f"{op}: slots has {a.slots.dim()} dimensions; must have 1")
    if a.dtype not in FLOAT_DTYPES:
        valid = ", ".join(map(str, FLOAT_DTYPES))
        raise TypeError(f"{op}: dtype is {a.dtype!r}; must be one of {valid}")


@named(KvUnpackArguments)
def _check_values(a: KvUnpackArguments) -> None:
    check_alignment("kv_unpack", a.blocks)
    if a.slots.device.type == "cpu":
        check_slots("kv_unpack", a.slots, a.blocks.shape[0], unique=False)


@named(KvUnpackArguments)
def _fake(a: KvUnpackArguments) -> Tensor:
    return a.blocks.new_empty((a.slots.shape[0], a.blocks.shape[1], a.head_dim), dtype=a.dtype)


def _example(make: Callable[..., Tensor]) -> tuple[object, ...]:
    """Blocks with something in them."""
    fmt, slots = BlockFormat(64, 24), torch.tensor([33, 2, -1, 63, 0])
    rows, blocks = torch.randn(5, 2, 64), torch.zeros(2, 2, fmt.nbytes, dtype=torch.uint8)
    kv_codec.write(rows, blocks, slots, fmt, None, None)
    like = make(1)
    places = blocks.to(like.device), slots.to(like.device)
    return *places, fmt.head_dim, fmt.keep, fmt.values, fmt.scales, like.dtype


_op = Op(
    "kv_unpack",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=_fake,
    example=_example,
)

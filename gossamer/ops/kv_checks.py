"""Argument checks that the ops on KV blocks share."""

from typing import Any

import torch
from torch import Tensor

from gossamer.ops.checks import check_shape, check_tensor, dtype_name
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

ALIGNMENT = 16  # bytes: the widest load of a GPU


def check_format(
    op: str, head_dim: int, keep: int | None, values: str, scales: str | None
) -> BlockFormat:
    """The format itself; ValueError, which names the op, when there is none like this."""
    try:
        return BlockFormat(head_dim, keep, values, scales)
    except ValueError as error:
        raise ValueError(f"{op}: {error}") from None


def check_rows(op: str, x: Any, name: str = "x") -> None:
    """Rows [N, heads, head_dim] of float32, float16 or bfloat16."""
    check_tensor(op, name, x)
    if x.dim() != 3:
        raise ValueError(
            f"{op}: {name} has {x.dim()} dimensions; must have 3: tokens, heads, head_dim"
        )


def check_plain(op: str, name: str, value: Any, dtype: torch.dtype, device: torch.device) -> None:
    """A strided tensor of this dtype on this device."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} is {type(value).__name__}; must be a torch.Tensor")
    if value.is_nested or value.layout is not torch.strided:
        raise TypeError(f"{op}: {name} must be an ordinary, strided tensor")
    if value.dtype is not dtype:
        raise TypeError(
            f"{op}: {name} has dtype {dtype_name(value.dtype)}; must be {dtype_name(dtype)}"
        )
    if value.device != device:
        raise ValueError(f"{op}: {name} is on {value.device}; must be on {device}")


def check_blocks(op: str, blocks: Any, fmt: BlockFormat, device: torch.device) -> None:
    """uint8 [blocks, heads, bytes of a block]; each block contiguous and aligned to 16 bytes."""
    check_plain(op, "blocks", blocks, torch.uint8, device)
    if blocks.dim() != 3 or blocks.shape[2] != fmt.nbytes:
        raise ValueError(
            f"{op}: blocks has shape {list(blocks.shape)}; must be [blocks, heads, {fmt.nbytes}], "
            "the bytes of a block of this format"
        )
    strides = blocks.stride()
    if strides[2] != 1 or strides[0] % ALIGNMENT or strides[1] % ALIGNMENT:
        raise ValueError(
            f"{op}: blocks has strides {list(strides)}; "
            f"must be multiples of {ALIGNMENT}, and 1 in the last dimension"
        )


def check_write(
    op: str, x: Any, blocks: Any, keep: int | None, values: str, scales: str
) -> BlockFormat:
    """Rows and the blocks they go to; the format of the latter."""
    check_rows(op, x)
    fmt = check_format(op, x.shape[2], keep, values, scales)
    check_blocks(op, blocks, fmt, x.device)
    check_shape(op, "blocks", blocks, (blocks.shape[0], x.shape[1], fmt.nbytes), "with x's heads")
    check_apart(op, blocks)
    return fmt


def check_apart(op: str, blocks: Tensor) -> None:
    """Blocks that are written to must not share memory."""
    (inner_stride, inner), (outer_stride, outer) = sorted(
        [(blocks.stride(0), blocks.shape[0]), (blocks.stride(1), blocks.shape[1])]
    )
    if inner_stride == outer_stride:
        inner, outer = blocks.shape[1], blocks.shape[0]
    nbytes = blocks.shape[2]
    span = nbytes if inner <= 1 else inner_stride * inner
    inside = inner <= 1 or inner_stride >= nbytes
    if blocks.numel() and not (inside and (outer <= 1 or outer_stride >= span)):
        raise ValueError(
            f"{op}: blocks of shape {list(blocks.shape)} with strides {list(blocks.stride())} "
            "share memory; must lie apart"
        )


def check_alignment(op: str, blocks: Tensor) -> None:
    """The address, which only a real tensor has."""
    if blocks.device.type != "meta" and blocks.data_ptr() % ALIGNMENT:
        raise ValueError(f"{op}: blocks must start at a multiple of {ALIGNMENT} bytes")


def check_ranking(
    op: str, x: Tensor, fmt: BlockFormat, weights: Tensor | None, scores: Tensor | None
) -> None:
    """At most one of weights [heads, head_dim] and scores [N, heads, head_dim], float32."""
    fitted = fmt.coded and fmt.scales == "row"
    for name, value, shape, meaning in (
        ("weights", weights, tuple(x.shape[1:]), "heads and head_dim of x"),
        ("scores", scores, tuple(x.shape), "the shape of x"),
    ):
        if value is None:
            continue
        check_plain(op, name, value, torch.float32, x.device)
        check_shape(op, name, value, shape, meaning)
        if fmt.keep is None and not (fitted and name == "weights"):
            raise ValueError(f"{op}: {name} is given; must be None where nothing is left out")
    if weights is not None and scores is not None:
        raise ValueError(f"{op}: weights and scores are both given; must be one of them")


def check_head_dim(op: str, x: Any, fmt: BlockFormat) -> None:
    """Rows as wide as the format says."""
    if isinstance(x, Tensor) and x.dim() == 3 and x.shape[2] != fmt.head_dim:
        raise ValueError(
            f"{op}: x has rows of {x.shape[2]}; must be {fmt.head_dim}, the head_dim of the format"
        )


def on_host(numbers: Any, x: Any) -> bool:
    """Whether the numbers are on the CPU and the rows on a GPU."""
    tensors = isinstance(numbers, Tensor) and isinstance(x, Tensor)
    return tensors and numbers.device.type == "cpu" and x.device.type == "cuda"


def check_slots(op: str, slots: Tensor, num_blocks: int, *, unique: bool) -> None:
    """Slots on the CPU: -1, or 0 to the last one, and no slot twice if `unique`."""
    capacity = num_blocks * BLOCK_TOKENS
    valid = f"0 to {capacity - 1}, or -1 for none" if capacity else "-1, as there are no blocks"
    wrong = slots[(slots < -1) | (slots >= capacity)]
    if wrong.numel():
        raise ValueError(f"{op}: a slot is {wrong[0].item()}; must be {valid}")
    if not unique:
        return
    used, counts = slots[slots >= 0].unique(return_counts=True)
    if (counts > 1).any():
        twice = used[counts > 1][0].item()
        raise ValueError(f"{op}: slot {twice} is repeated; must be there once")


def check_whole_blocks(op: str, slots: Tensor) -> None:
    """Slots on the CPU, 32 at a time: those of one block in order, or -1 throughout."""
    groups = slots.reshape(-1, BLOCK_TOKENS)
    first = groups[:, :1]
    expected = torch.where(first < 0, -1, first + torch.arange(BLOCK_TOKENS))
    wrong = (groups != expected).any(1) | ((first >= 0) & (first % BLOCK_TOKENS != 0)).any(1)
    if wrong.any():
        start, second = groups[wrong][0, :2].tolist()
        raise ValueError(
            f"{op}: slots {start}, {second}, ... are not a whole block; must be "
            f"{BLOCK_TOKENS} in order from a multiple of {BLOCK_TOKENS}, or all -1"
        )

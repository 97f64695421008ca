"""Triton kernel of gossamer.ops.rope_inplace."""

import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.rope import launch, turn_rows, variant
from gossamer.kernels.variants import Variant


@triton.jit
def rope_inplace_kernel(
    x_ptr, positions_ptr, cos_ptr, sin_ptr, heads, head_dim, pairs, max_positions,
    token_stride, head_stride, channel_stride, position_stride, head_blocks,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """One program per token and HEADS heads."""
    token = (tl.program_id(0) // head_blocks).to(tl.int64)
    head = (tl.program_id(0) % head_blocks).to(tl.int64) * HEADS + tl.arange(0, HEADS)[:, None]
    heads_inside = head < heads
    x_ptr += token * token_stride + head * head_stride
    turn_rows(
        x_ptr, positions_ptr, cos_ptr, sin_ptr, x_ptr, head_dim, pairs, max_positions,
        channel_stride, channel_stride, position_stride, token, heads_inside, True,
        INTERLEAVED, HEADS, PAIRS,
    )  # fmt: skip


def rope_inplace(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> None:
    """The launcher; arguments are those of the op, already checked."""
    launch(rope_inplace_kernel, x, positions, (cos, sin), cos.shape, interleaved)


def variants() -> list[Variant]:
    """Some of the programs that calls compile to."""
    return [
        variant(rope_inplace_kernel, "*bf16", False, 64),
        variant(rope_inplace_kernel, "*bf16", True, 64),
        variant(rope_inplace_kernel, "*fp32", False, 256, "channel_stride"),
    ]

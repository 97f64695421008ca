"""From a fused projection to queries and a paged cache in one pass: the start of a decode step."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.arguments import RopeAppendArguments, named
from gossamer.ops import kv_codec
from gossamer.ops.checks import check_like, check_shape
from gossamer.ops.kv_block import BlockFormat
from gossamer.ops.kv_checks import (
    check_alignment,
    check_apart,
    check_blocks,
    check_plain,
    check_slots,
)
from gossamer.ops.norm_checks import check_eps
from gossamer.ops.registry import OPS, Op
from gossamer.ops.rope_checks import check_positions, check_rope

PLAIN = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Rotation(NamedTuple):
    """What becomes of the queries and keys of a projection: RMSNorm if there is a norm, then RoPE.

    positions: int64 [tokens]. cos, sin: float32 [max_positions, rotary_dim / 2]. norm: [heads,
    head_dim], of queries and keys, with its eps.
    """

    positions: Tensor
    cos: Tensor
    sin: Tensor
    norm: Tensor | None = None
    eps: float = 1e-6


class Turn(NamedTuple):
    """A basis of K: row x of a head becomes x @ matrices[head] + offsets[head].

    matrices: [query_heads + kv_heads, head_dim, head_dim]. offsets: [query_heads + kv_heads,
    head_dim], or None for none. Both in the type of the rows.
    """

    matrices: Tensor
    offsets: Tensor | None = None


def rope_append(
    qkv: Tensor,
    rotation: Rotation,
    k_blocks: Tensor,
    v_blocks: Tensor,
    slots: Tensor,
    turn: Turn | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """Rotate queries and keys, store keys and values in dense blocks, return the queries.

    qkv: [tokens, query_heads + 2 * kv_heads, head_dim], the heads of q, of k and of v side by side;
    float32, float16 or bfloat16, channels contiguous. rotation: RMSNorm and RoPE of q and k, of all
    their channels. turn: a basis that they are then turned into. k_blocks, v_blocks: uint8
    [num_blocks, kv_heads, bytes of a block], dense rows of qkv's own type as `kv_pack` stores them,
    written in place. slots: int64 [tokens]; slot s is token s % 32 of block s // 32, -1 skips a
    token. Rounded where the separate ops round.
    Returns q [tokens, query_heads, head_dim], contiguous. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, numbers on the CPU out of
    range), before anything is written. On a GPU numbers are not looked at: rows of a position out
    of range become NaN, and a slot out of range is skipped.
    """
    kv_heads = k_blocks.shape[1] if isinstance(k_blocks, Tensor) and k_blocks.dim() == 3 else 0
    if not isinstance(qkv, Tensor) or qkv.dim() != 3 or qkv.shape[1] <= 2 * kv_heads:
        raise ValueError(
            f"rope_append: qkv has shape {list(getattr(qkv, 'shape', ()))}; must be [tokens, "
            f"query_heads + {2 * kv_heads}, head_dim], with at least one query head"
        )
    q = qkv.new_empty(qkv.shape[0], qkv.shape[1] - 2 * kv_heads, qkv.shape[2])
    tensors = (qkv, *rotation[:3], k_blocks, v_blocks, slots, q)
    _op(*tensors, *rotation[3:], *(turn or (None, None)), backend=backend)
    return q


@named(RopeAppendArguments)
def _reference(a: RopeAppendArguments) -> None:
    queries, roped = a.q.shape[1], a.q.shape[1] + a.k_blocks.shape[1]
    tables = (a.positions, a.cos, a.sin)
    if a.norm is None:
        turned = OPS["rope"].reference(a.qkv[:, :roped], *tables, False)
    else:
        turned = OPS["rmsnorm_rope"].reference(a.qkv[:, :roped], a.norm, *tables, a.eps, False)
    if a.matrices is not None:
        wide = torch.promote_types(turned.dtype, torch.float32)
        product = torch.einsum("thd,hde->the", turned.to(wide), a.matrices.to(wide))
        if a.offsets is not None:
            product = product + a.offsets.to(wide)
        turned = product.to(a.qkv.dtype)
    a.q.copy_(turned[:, :queries])
    fmt = BlockFormat(a.qkv.shape[2], None, PLAIN[a.qkv.dtype])
    kv_codec.write(turned[:, queries:], a.k_blocks, a.slots, fmt, None, None)
    kv_codec.write(a.qkv[:, roped:], a.v_blocks, a.slots, fmt, None, None)


@named(RopeAppendArguments)
def _check(a: RopeAppendArguments) -> None:
    op = "rope_append"
    check_rope(op, a.qkv, a.positions, a.cos, a.sin, False, "qkv")
    tokens, heads, head_dim = a.qkv.shape
    if a.qkv.stride(2) != 1:
        raise ValueError(
            f"{op}: qkv has strides {list(a.qkv.stride())}; must be 1 in the last dimension"
        )
    if 2 * a.cos.shape[1] != head_dim:
        raise ValueError(
            f"{op}: cos has shape {list(a.cos.shape)}; must have {head_dim // 2} columns, "
            "a pair of channels each"
        )
    fmt = BlockFormat(head_dim, None, PLAIN[a.qkv.dtype])
    for blocks in (a.k_blocks, a.v_blocks):
        check_blocks(op, blocks, fmt, a.qkv.device)
        check_apart(op, blocks)
    check_shape(op, "v_blocks", a.v_blocks, tuple(a.k_blocks.shape), "the shape of k_blocks")
    queries = heads - 2 * a.k_blocks.shape[1]
    check_plain(op, "slots", a.slots, torch.int64, a.qkv.device)
    check_shape(op, "slots", a.slots, (tokens,), "one for each token of qkv")
    check_like(op, "q", a.q, "qkv", a.qkv)
    check_shape(op, "q", a.q, (tokens, queries, head_dim), "the query heads of qkv")
    if not a.q.is_contiguous():
        raise ValueError(f"{op}: q has strides {list(a.q.stride())}; must be contiguous")
    roped = heads - a.k_blocks.shape[1]
    for name, shape in (
        ("norm", (roped, head_dim)),
        ("matrices", (roped, head_dim, head_dim)),
        ("offsets", (roped, head_dim)),
    ):
        value = getattr(a, name)
        if value is not None:
            check_like(op, name, value, "qkv", a.qkv)
            check_shape(op, name, value, shape, "for each head of q and k")
    check_eps(op, a.eps)
    if a.offsets is not None and a.matrices is None:
        raise ValueError(f"{op}: offsets are given without matrices; must be with them")


@named(RopeAppendArguments)
def _check_values(a: RopeAppendArguments) -> None:
    check_positions("rope_append", a.positions, a.cos)
    for blocks in (a.k_blocks, a.v_blocks):
        check_alignment("rope_append", blocks)
    if a.slots.device.type == "cpu":
        check_slots("rope_append", a.slots, a.k_blocks.shape[0], unique=True)


def _example(make: Callable[..., Tensor]) -> tuple[object, ...]:
    """Of small integers: every backend has the same bytes, in whatever order it adds."""
    qkv = make(3, 8, 64).round()
    fmt = BlockFormat(64, None, PLAIN[qkv.dtype])
    blocks = torch.zeros(2, 4, 2, fmt.nbytes, dtype=torch.uint8).to(qkv.device)
    numbers = torch.tensor([[4, 0, 2], [40, -1, 7]]).to(qkv.device)
    tables = make(2, 5, 32).sign().float()
    return (
        *(qkv, numbers[0], tables[0], tables[1], blocks[0], blocks[1], numbers[1], make(3, 4, 64)),
        *(None, 1e-6, make(6, 64, 64).sign(), make(6, 64).round()),
    )


_op = Op(
    "rope_append",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=lambda *_: None,
    mutates=("k_blocks", "v_blocks", "q"),
    example=_example,
    triton="gossamer.kernels.rope_append:rope_append",
    native_backends=("cpu",),
)

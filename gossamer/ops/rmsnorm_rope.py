"""RMSNorm of each head and rotary embedding in one pass: queries and keys of Qwen3 and its kin."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.kernels.arguments import RmsnormRopeArguments, named
from gossamer.ops.checks import check_like
from gossamer.ops.norm_checks import check_eps
from gossamer.ops.registry import Op
from gossamer.ops.rope import example, turned
from gossamer.ops.rope_checks import check_positions, check_rope

MAX_HEAD_DIM = 1024


def rmsnorm_rope(
    x: Tensor,
    weight: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
    *,
    backend: str | None = None,
) -> Tensor:
    """rope(rmsnorm(x, weight)): each head normed over its channels, then turned; rounded once.

    x: [tokens, heads, head_dim] with head_dim from 2 to 1,024, float32, float16 or bfloat16, any
    strides. weight: [head_dim], or [heads, head_dim] where heads differ (queries and keys in one
    call); x's dtype. positions: int64 [tokens], the line of cos and sin that turns a token. cos,
    sin: float32, contiguous [max_positions, rotary_dim / 2]; channels from rotary_dim on are normed
    only. eps: >= 0. Pairs of channels are (i, i + rotary_dim / 2), or (2i, 2i + 1) if interleaved.
    All in float32; models that call a norm and then an embedding round in between.
    Returns a contiguous tensor of x's shape and dtype. Inference only: no gradient.
    Raises TypeError (dtype) or ValueError (shape, strides, device, eps, position out of range).
    Positions on a GPU are not looked at, as that would wait for them: rows of one out of range
    become NaN.

        q = rmsnorm_rope(q, q_norm.weight, positions, cos, sin, 1e-6)

    No CUDA kernel: one with a few lanes of a warp to a head took 129 us for 16,384 tokens of 40
    heads on an H200, where the Triton kernel takes 93 (87% of copy bandwidth).
    """
    result: Tensor = _op(x, weight, positions, cos, sin, eps, interleaved, backend=backend)
    return result


@named(RmsnormRopeArguments)
def _reference(a: RmsnormRopeArguments) -> Tensor:
    wide = torch.promote_types(a.x.dtype, torch.float32)
    h = a.x.to(wide)
    normed = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + a.eps) * a.weight.to(wide)
    return turned(normed, a.positions, a.cos, a.sin, a.interleaved).to(a.x.dtype)


@named(RmsnormRopeArguments)
def _check(a: RmsnormRopeArguments) -> None:
    op = "rmsnorm_rope"
    check_rope(op, a.x, a.positions, a.cos, a.sin, a.interleaved)
    check_like(op, "weight", a.weight, "x", a.x)
    _, heads, head_dim = a.x.shape
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"{op}: head_dim is {head_dim}; must be 2 to {MAX_HEAD_DIM}")
    if tuple(a.weight.shape) not in ((head_dim,), (heads, head_dim)):
        raise ValueError(
            f"{op}: weight has shape {list(a.weight.shape)}; "
            f"must be [{head_dim}] or [{heads}, {head_dim}], the channels of x or its heads too"
        )
    check_eps(op, a.eps)


@named(RmsnormRopeArguments)
def _check_values(a: RmsnormRopeArguments) -> None:
    check_positions("rmsnorm_rope", a.positions, a.cos)


def _fake(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _example(make: Callable[..., Tensor]) -> tuple[object, ...]:
    x, positions, cos, sin, interleaved = example(make)
    return x, make(40), positions, cos, sin, 1e-6, interleaved


_op = Op(
    "rmsnorm_rope",
    reference=_reference,
    check=_check,
    check_values=_check_values,
    fake=_fake,
    example=_example,
    triton="gossamer.kernels.rmsnorm_rope:rmsnorm_rope",
    native_backends=("cpu",),
)

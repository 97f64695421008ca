"""RMSNorm of each head and rotary embedding in one pass: queries and keys of Qwen3 and its kin."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.ops.checks import check_like
from gossamer.ops.norm_checks import check_eps
from gossamer.ops.registry import Op
from gossamer.ops.rope import turned
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


def _reference(
    x: Tensor,
    weight: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    h = x.to(wide)
    normed = h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps) * weight.to(wide)
    return turned(normed, positions, cos, sin, interleaved).to(x.dtype)


def _check(
    x: Tensor,
    weight: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
) -> None:
    op = "rmsnorm_rope"
    check_rope(op, x, positions, cos, sin, interleaved)
    check_like(op, "weight", weight, "x", x)
    _, heads, head_dim = x.shape
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"{op}: head_dim is {head_dim}; must be 2 to {MAX_HEAD_DIM}")
    if tuple(weight.shape) not in ((head_dim,), (heads, head_dim)):
        raise ValueError(
            f"{op}: weight has shape {list(weight.shape)}; "
            f"must be [{head_dim}] or [{heads}, {head_dim}], the channels of x or its heads too"
        )
    check_eps(op, eps)


def _check_values(x: Tensor, weight: Tensor, positions: Tensor, cos: Tensor, *_: object) -> None:
    check_positions("rmsnorm_rope", positions, cos)


def _fake(x: Tensor, *_: object) -> Tensor:
    return x.new_empty(x.shape)


def _example(make: Callable[..., Tensor]) -> tuple[object, ...]:
    x = make(3, 2, 40)
    positions = torch.tensor([4, 0, 2]).to(x.device)
    return x, make(40), positions, make(5, 16).float(), make(5, 16).float(), 1e-6, False


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

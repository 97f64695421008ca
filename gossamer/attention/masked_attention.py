"""Attention under any mask: the public function."""

import sys
from typing import Any, Literal, overload

import torch
from torch import Tensor

from gossamer.attention.candidates import Arguments
from gossamer.attention.plans import Plan
from gossamer.attention.prepared import PREPARED, PreparedMask
from gossamer.attention.selector import plan
from gossamer.masks import Mask
from gossamer.ops.backends import chosen
from gossamer.ops.checks import check_floats
from gossamer.ops.masked_checks import check_bias, check_heads

OP = "masked_attention"
INFINITY = float("inf")


@overload
def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | PreparedMask,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    return_lse: Literal[False] = False,
    backend: str | None = None,
) -> Tensor: ...


@overload
def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | PreparedMask,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    return_lse: Literal[True],
    backend: str | None = None,
) -> tuple[Tensor, Tensor]: ...


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | PreparedMask,
    *,
    scale: float | None = None,
    softcap: float = 0.0,
    bias: Tensor | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale q k + bias) v over the keys that the mask shows to each query.

    q: [batch, heads, q_len, head_dim]; k, v: [batch, kv_heads, kv_len, head_dim], heads a multiple
    of kv_heads; any strides, but 1 in the last dimension; head_dim a multiple of 8 from 32 to 256;
    float32, float16 or bfloat16. mask: one of `gossamer.masks`, or what `prepare` made of it, which
    saves looking it up. scale: head_dim ** -0.5 if None. softcap: c tanh(x / c) of the scaled
    score, 0 for none. bias: added to that; a floating tensor that expands to [batch, heads, q_len,
    kv_len].

    Returns out in the shape and dtype of q, contiguous unless torch's SDPA was the fastest; with
    return_lse also the logarithm of the sum of exponentials, float32 [batch, heads, q_len]. A query
    that sees nothing gives zeros, and -inf.

    The kernel is chosen in the first call of each kind (shapes, dtype); see
    docs/masked-attention.md. backend: cpu, cuda, triton or reference, where it matters. Raises
    TypeError or ValueError for bad arguments, RuntimeError for gradients.
    """
    if torch.is_grad_enabled():
        _refuse_gradients(q, k, v, bias)
    try:
        prepared = mask if type(mask) is PreparedMask else _prepared(mask, q, k)
        key = (
            q.shape, k.shape, v.shape, q.dtype, q.device, bias is None, softcap == 0,
            scale is None or 0 < scale < INFINITY, return_lse, backend, chosen(),
        )  # fmt: skip
        found: Plan | None = prepared.plans.get(key)
    except AttributeError:  # not a tensor
        _check_tensors(q, k, v, bias, 1.0, 0.0)
        raise
    if found is None:
        found = _planned(prepared, q, k, v, bias, scale, softcap, return_lse, backend, key)
    try:
        out, lse = found.run(q, k, v, bias, found.scale if scale is None else scale, softcap)
    except RuntimeError:
        _check_tensors(q, k, v, bias, 1.0 if scale is None else scale, softcap)
        raise
    if not return_lse:
        return out
    assert lse is not None, "no candidate lacks it"
    return out, lse


def _prepared(mask: Any, q: Tensor, k: Tensor) -> PreparedMask:
    """From the cache, or into it."""
    if not isinstance(mask, Mask):
        raise TypeError(
            f"{OP}: mask is {type(mask).__name__}; must be a gossamer.masks.Mask or of prepare()"
        )
    if q.dim() != 4 or k.dim() != 4:
        _check_tensors(q, k, k, None, 1.0, 0.0)
    return PREPARED.get(mask, q.shape[2], k.shape[2], q.device)


def _planned(
    mask: PreparedMask,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float | None,
    softcap: float,
    return_lse: bool,
    backend: str | None,
    key: Any,
) -> Plan:
    """Checks everything, chooses, and remembers."""
    factor = float(q.shape[-1]) ** -0.5 if scale is None else scale
    _check_tensors(q, k, v, bias, factor, softcap)
    _check_mask(mask.mask, (mask.q_len, mask.kv_len), q, k)
    if q.device != mask.device:
        raise ValueError(
            f"{OP}: the mask was prepared for {mask.device}; must be {q.device}, the device of q"
        )
    choose = torch.compiler.disable(plan) if "torch._dynamo" in sys.modules else plan
    with torch.no_grad():
        found = choose(mask, Arguments(q, k, v, bias, factor, softcap, return_lse), backend)
    mask.keep(found, key)
    return found


def _check_tensors(q: Any, k: Any, v: Any, bias: Any, scale: float, softcap: float) -> None:
    """TypeError or ValueError; whatever the mask is."""
    check_heads(OP, q, k, v)
    if bias is not None:
        check_bias(OP, bias, q, k)
    check_floats(OP, scale, softcap)


def _check_mask(mask: Mask, lengths: tuple[int, int], q: Tensor, k: Tensor) -> None:
    """Whether a mask, prepared for these lengths, is for q and k."""
    if lengths != (q.shape[2], k.shape[2]):
        raise ValueError(
            f"{OP}: q_len and kv_len are {q.shape[2]} and {k.shape[2]}; "
            f"must be {lengths[0]} and {lengths[1]}, as the mask was prepared for"
        )
    for name, given, wanted in (
        ("batch", q.shape[0], mask.batch),
        ("heads", q.shape[1], mask.heads),
    ):
        if wanted is not None and given != wanted:
            raise ValueError(
                f"{OP}: {name} of q is {given}; must be {wanted}, which the mask is made for"
            )


def _refuse_gradients(*tensors: Any) -> None:
    """RuntimeError where one of them wants a gradient."""
    if any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{OP} has no gradient and an argument requires one; "
            "call it under torch.no_grad() or torch.inference_mode()"
        )

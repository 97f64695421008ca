"""Checks of the public function's arguments, in words. They run when a call is new, or failed."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gossamer.masks import DenseMask, DocumentIds, Mask
from gossamer.masks.base import Not, Pair
from gossamer.masks.selection import PerBatch, PerHead
from gossamer.ops.checks import check_floats
from gossamer.ops.masked_checks import check_bias, check_heads

OP = "masked_attention"


def check_tensors(q: Any, k: Any, v: Any, bias: Any, scale: float, softcap: float) -> None:
    """TypeError or ValueError; whatever the mask is."""
    check_heads(OP, q, k, v)
    if bias is not None:
        check_bias(OP, bias, q, k)
    check_floats(OP, scale, softcap)


def check_mask(mask: Mask, lengths: tuple[int, int], q: Tensor, k: Tensor) -> None:
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


def check_same_device(mask: Mask, device: torch.device) -> None:
    """Tensors of the user are not moved: in every call that would be slow in silence."""
    for name, tensor in user_tensors(mask):
        if tensor.device != device:
            raise ValueError(
                f"{OP}: {name} is on {tensor.device}; must be on {device}, the device of q: "
                f"use mask.to({str(device)!r})"
            )


def user_tensors(mask: Mask) -> Iterator[tuple[str, Tensor]]:
    """Tensors that the user gave to the mask; tables that masks make for themselves are not."""
    if isinstance(mask, Pair):
        yield from user_tensors(mask.left)
        yield from user_tensors(mask.right)
    elif isinstance(mask, Not):
        yield from user_tensors(mask.mask)
    elif isinstance(mask, PerHead | PerBatch):
        for part in dict.fromkeys(mask.masks):
            yield from user_tensors(part)
    elif isinstance(mask, DenseMask):
        yield "DenseMask", mask.allowed
    elif isinstance(mask, DocumentIds):
        yield "DocumentIds", mask.ids


def refuse_gradients(*tensors: Any) -> None:
    """RuntimeError where one of them wants a gradient."""
    if any(isinstance(t, Tensor) and t.requires_grad for t in tensors):
        raise RuntimeError(
            f"{OP} has no gradient and an argument requires one; "
            "call it under torch.no_grad() or torch.inference_mode()"
        )

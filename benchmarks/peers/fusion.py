"""Whole transformers models under a mask, by others: eager and torch.compile over a dense mask,
torch.compile over FlexAttention with the same mask.

Their attention is SDPA or FlexAttention through transformers' own AttentionInterface, so that every
model takes every mask, ViT too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from gossamer.masks import Causal, Mask

NAME = "benchmark_mask"


@dataclass
class Current:
    """The mask of all self-attentions: a bool tensor, or blocks for FlexAttention."""

    dense: Tensor | None = None
    blocks: BlockMask | None = None


CURRENT = Current()


def set_mask(model: Any, mask: Mask, n: int, flex: bool) -> None:
    """What the next calls of models with the implementation `NAME` see."""
    if model.config.model_type in ("gpt2", "llama"):
        mask = mask & Causal()
    device = next(model.parameters()).device
    CURRENT.dense = CURRENT.blocks = None
    if flex:
        moved = mask.to(device)
        CURRENT.blocks = create_block_mask(
            moved.mask_mod, None, None, n, n, device=str(device), _compile=False
        )
    else:
        CURRENT.dense = mask.dense(n, n, device)


def redirect(model: Any) -> None:
    """Let the model's attention be the one below."""
    transformers.AttentionInterface.register(NAME, _attention)
    transformers.AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    model.set_attn_implementation(NAME)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """position_bias: T5's, which some versions of transformers pass as attention_mask."""
    bias = attention_mask if position_bias is None else position_bias
    causal = getattr(module, "is_decoder", False) and not _is_cross(module)
    if _is_cross(module):
        out = F.scaled_dot_product_attention(query, key, value, scale=scaling)
    elif CURRENT.blocks is not None:
        out = _flex(query, key, value, bias, scaling, causal)
    else:
        out = _dense(query, key, value, bias, scaling, causal)
    return out.transpose(1, 2).contiguous(), None


def _is_cross(module: nn.Module) -> bool:
    """T5's attention of the decoder over the encoder: the only one with a bias of its own."""
    return bool(getattr(module, "benchmark_is_cross", False))


def mark_cross(model: nn.Module) -> None:
    """So that compiled code need not look at names."""
    for name, module in model.named_modules():
        if name.endswith("EncDecAttention"):
            module.benchmark_is_cross = True


def _dense(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: bool
) -> Tensor:
    mask = CURRENT.dense
    assert mask is not None, "set_mask was called"
    if causal:
        mask = mask & torch.ones_like(mask).tril()
    if bias is not None:
        mask = torch.where(mask, bias, torch.finfo(q.dtype).min)
    groups = q.shape[1] // k.shape[1]
    if groups > 1:  # as transformers does
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _flex(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: bool
) -> Tensor:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert bias is not None, "only then is it used"
        shown = s + bias[0, h, i, j]
        return torch.where(i >= j, shown, -float("inf")) if causal else shown

    grouped = q.shape[1] != k.shape[1]
    modified: Callable[..., Tensor] | None = None if bias is None else score
    out: Any = flex_attention(
        q, k, v, score_mod=modified, block_mask=CURRENT.blocks, scale=scale, enable_gqa=grouped
    )
    return out  # type: ignore[no-any-return]

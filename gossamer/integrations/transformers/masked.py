"""attn_implementation="gossamer_masked": attention of encoders under a mask object."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from gossamer.attention import masked_attention
from gossamer.integrations.transformers.implementation import implementation, register
from gossamer.integrations.transformers.keywords import refuse_others
from gossamer.integrations.transformers.spans import spans_of
from gossamer.masks import Causal, Mask, Sliding

NAME = "gossamer_masked"
_masks: WeakKeyDictionary[nn.Module, Mask] = WeakKeyDictionary()


def register_masked() -> None:
    """Make the name known to transformers, for from_pretrained(attn_implementation=...)."""
    register(NAME, _attention, _padding)


def set_attention_pattern(model: Any, mask: Mask | None) -> None:
    """What the attention layers of `model` see under attn_implementation="gossamer_masked".

    mask: one of gossamer.masks, which counts a row's real tokens from 0, so padding is never seen
    and shifts nothing; None to forget it. Raises TypeError for anything else.
    """
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"mask is {type(mask).__name__}; must be a gossamer.masks.Mask, or None")
    register_masked()
    for module in model.modules():
        if mask is None:
            _masks.pop(module, None)
        else:
            _masks[module] = mask


@contextmanager
def use_masked_attention(model: Any, mask: Mask) -> Iterator[None]:
    """Inside, every self-attention of `model` is gossamer.masked_attention under `mask`.

    Layers that have a sliding window of their own, or are causal, keep that as well. Everything is
    as before afterwards. Raises TypeError for what is no mask, ValueError for a model whose
    attention transformers cannot redirect.
    """
    before = {module: _masks[module] for module in model.modules() if module in _masks}
    set_attention_pattern(model, mask)
    try:
        with implementation(model, NAME):
            yield
    finally:
        set_attention_pattern(model, None)
        _masks.update(before)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: [B, H, T, D] to [B, T, H, D]."""
    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    refuse_others({**others, "is_causal": True}, module, "gossamer_masked")
    mask = _masks.get(module)
    if mask is None:
        raise ValueError(
            f"attn_implementation={NAME!r} needs a mask: generate or encode inside "
            "use_masked_attention(model, mask), or call set_attention_pattern(model, mask)"
        )
    if key.shape[2] != query.shape[2]:
        raise ValueError(
            f"{query.shape[2]} queries and {key.shape[2]} keys; must be as many: {NAME} is for "
            "self-attention without a cache (use_cache=False)"
        )
    if causal:
        mask = mask & Causal()
    if sliding_window:  # the query's own key, sliding_window - 1 on either side
        mask = mask & Sliding.symmetric(sliding_window - 1)
    if attention_mask is None:
        out = masked_attention(query, key, value, mask, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    _refuse_rows(mask)
    out = query.new_zeros(query.shape)
    for span in spans_of(attention_mask):
        part = (span.rows_index(query.device), slice(None), slice(span.start, span.end))
        tensors = (query[part], key[part], value[part])
        out[part] = masked_attention(*tensors, mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def _refuse_rows(mask: Mask) -> None:
    """ValueError for a mask that tells batch elements apart: padded ones are taken in parts."""
    if mask.batch is not None:
        raise ValueError(
            f"the mask is made for {mask.batch} batch elements and the batch has padding; "
            "use a mask that is the same for all, or a batch without padding"
        )


def _padding(*_: Any, attention_mask: Tensor | None = None, **__: Any) -> Tensor | None:
    """[rows, tokens], True for tokens, or None where there is no padding."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask

"""attn_implementation="gossamer": attention over the pages of a SparseCache."""

from typing import Any

import torch
from torch import Tensor

from gossamer.integrations.transformers.handed import WAY_OUT, Handed
from gossamer.integrations.transformers.implementation import register
from gossamer.integrations.transformers.keywords import refuse_other_masks, refuse_others

NAME = "gossamer"


def register_attention() -> None:
    """Make attn_implementation="gossamer" known to transformers; SparseCache does it by itself.

    Needed before `from_pretrained(..., attn_implementation="gossamer")`.
    """
    register(NAME, sparse_attention, padding_mask)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # pages are chosen in Python
def sparse_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: query [B, Hq, T, D] to [B, T, Hq, D], keys from the cache.

    Raises ValueError for K and V that do not come from a SparseCache as they were, and for
    attention that is more than plain and causal.
    """
    if not isinstance(key, Handed) or not isinstance(value, Handed):
        raise ValueError(
            "attn_implementation='gossamer' needs K and V of a SparseCache: pass past_key_values="
            f"SparseCache(model.config, ...), and not use_cache=False. {WAY_OUT}"
        )
    if key.cache is not value.cache or key.layer != value.layer:
        raise ValueError("K and V come from different caches or layers")
    refuse_others(others, module, "SparseCache")
    if torch.is_grad_enabled() and query.requires_grad:
        raise ValueError(
            "a SparseCache has no gradient, and q requires one; "
            "call the model under torch.no_grad() or torch.inference_mode()"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    keys = (key.plain, value.plain)
    window = sliding_window or 0
    return key.cache.attend(key.layer, module, query, keys, attention_mask, scale, window), None


def padding_mask(*_: Any, attention_mask: Tensor | None = None, **rest: Any) -> Tensor | None:
    """The mask as attention wants it: [rows, tokens], True where there is no padding."""
    refuse_other_masks(rest)
    return attention_mask

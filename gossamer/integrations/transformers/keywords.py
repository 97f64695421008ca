"""What models hand on to attention besides tensors: let through, or refused, never dropped."""

from collections.abc import Mapping
from typing import Any

# Causal attention does not depend on these; nor on the others while they have this value.
IGNORED = {"position_ids", "cache_position", "use_cache", "token_type_ids"}
IGNORED |= {"output_hidden_states", "output_router_logits", "num_items_in_batch", "deterministic"}
NEUTRAL = {"dropout": 0.0, "is_causal": True, "output_attentions": False}


def refuse_others(keywords: Mapping[str, Any], module: Any, who: str) -> None:
    """ValueError for anything that makes attention other than plain and causal (softcap, s_aux)."""
    given = {"is_causal": getattr(module, "is_causal", None), **keywords}
    for name, argument in given.items():
        neutral = argument is None or (name in NEUTRAL and argument == NEUTRAL[name])
        if name not in IGNORED and not neutral:
            raise ValueError(f"the model's attention has {name}; {who} supports none")


def refuse_other_masks(keywords: Mapping[str, Any]) -> None:
    """ValueError for a mask that is not plainly causal, by what a mask function is told."""
    queries = keywords.get("q_length")
    if queries is None and (positions := keywords.get("cache_position")) is not None:
        queries = len(positions)  # before transformers 5.10 or so
    if not keywords.get("allow_is_causal_skip", True) and queries != 1:  # 1: a static cache
        raise ValueError("the model's mask is not plainly causal (packed sequences?)")

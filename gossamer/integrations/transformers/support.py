"""Which models the sparse cache is for, by their configs."""

from typing import Any

import torch

from gossamer.kv.layouts import PLAIN
from gossamer.kv.shape import KVShape
from gossamer.ops.decode_checks import MAX_GROUP

LAYER_TYPES = ("full_attention", "sliding_attention")
WAY_OUT = "use transformers' own cache for this model"
# Settings that make attention something else than softmax(scale q k) v over one K and V per token.
OTHERS = {
    "kv_lora_rank": "latent attention (MLA)",
    "attn_logit_softcapping": "soft-capped scores",
    "num_kv_shared_layers": "layers that share K and V",
    "attention_chunk_size": "chunked attention",
}


def shape_of(config: Any) -> KVShape:
    """The dimensions of a decoder's attention, from its config."""
    heads = config.num_attention_heads
    return KVShape(
        layers=config.num_hidden_layers,
        query_heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def kv_shape(model: Any) -> KVShape:
    """The dimensions of the model's attention, from its config."""
    return shape_of(model.config)


def supported_shape(config: Any) -> KVShape:
    """The same for a model that a SparseCache can serve.

    Raises TypeError for what is no config, ValueError that names what the model has and the way
    out.
    """
    if not hasattr(config, "get_text_config"):
        raise TypeError(f"config is {type(config).__name__}; must be a config of transformers")
    kind = getattr(config, "model_type", type(config).__name__)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder-decoder; must be a decoder: {WAY_OUT}")
    config = config.get_text_config(decoder=True)
    for name, what in OTHERS.items():
        if getattr(config, name, None):
            raise ValueError(f"{kind} has {what} ({name}), which SparseCache has not: {WAY_OUT}")
    others = sorted(set(getattr(config, "layer_types", None) or LAYER_TYPES) - {*LAYER_TYPES})
    if others:
        raise ValueError(
            f"{kind} has layers of {', '.join(others)}; "
            f"must be of {' and '.join(LAYER_TYPES)}: {WAY_OUT}"
        )
    if not hasattr(config, "num_attention_heads"):
        raise ValueError(f"{kind} has no num_attention_heads, so no attention: {WAY_OUT}")
    shape = shape_of(config)
    if shape.query_heads // shape.kv_heads > MAX_GROUP:
        raise ValueError(
            f"{kind} has {shape.query_heads} query heads and {shape.kv_heads} KV heads; "
            f"must be at most {MAX_GROUP} times as many: {WAY_OUT}"
        )
    return shape


def check_dtype(dtype: torch.dtype) -> None:
    """ValueError for types that pages cannot hold."""
    if dtype not in PLAIN:
        valid = ", ".join(str(d).removeprefix("torch.") for d in PLAIN)
        raise ValueError(
            f"the model computes in {str(dtype).removeprefix('torch.')}; must be one of {valid}: "
            "model.to(torch.bfloat16)"
        )

"""Hugging Face's names and shapes of a model's tensors."""

from gossamer.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_name(layer: int, part: str) -> str:
    """The full name of a tensor of a layer: part is "self_attn.q_proj.weight", say."""
    return f"model.layers.{layer}.{part}"


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of one layer, by the name within the layer. Layers are all alike."""
    hidden, inter = config.hidden_size, config.intermediate_size
    queries, keys = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.o_bias),
        "mlp.gate_proj": (inter, hidden, config.mlp_bias),
        "mlp.up_proj": (inter, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inter, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            shapes[f"self_attn.{name}.weight"] = (config.head_dim,)
    for name, (rows, columns, bias) in matrices.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that the model consists of; no head when it is tied."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    per_layer = layer_shapes(config)
    for layer in range(config.layers):
        shapes |= {layer_name(layer, part): shape for part, shape in per_layer.items()}
    shapes[NORM] = (config.hidden_size,)
    if not config.tied:
        shapes[HEAD] = shapes[EMBEDDING]
    return shapes

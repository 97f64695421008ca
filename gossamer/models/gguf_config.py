"""A model's config from the metadata of a GGUF file."""

from dataclasses import replace
from typing import Any

from gossamer.kv.extras import import_extra
from gossamer.models.config import ModelConfig, token_ids

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's is llama
FREQUENCY_FACTORS = "rope_freqs.weight"  # RoPE's frequencies are divided by these (Llama 3.1)
# What files of these architectures say about the model and is used below, or says nothing new.
KNOWN = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "expert_count",
    "expert_used_count",
}


class _Metadata:
    """Values of a GGUF file's metadata under its architecture's prefix."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        self.architecture = self.get_any("general.architecture", None)
        if self.architecture not in ARCHITECTURES:
            valid = ", ".join(ARCHITECTURES)
            raise ValueError(f"architecture is {self.architecture!r}; must be one of {valid}")
        for key in reader.fields:
            prefix, _, rest = key.partition(".")
            if prefix == self.architecture and rest not in KNOWN:
                raise ValueError(f"it has {key}; models with that are not supported")

    def get_any(self, key: str, default: Any) -> Any:
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def get(self, key: str, default: Any) -> Any:
        """Lists with a value per layer must be all the same."""
        value = self.get_any(f"{self.architecture}.{key}", default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(f"{key} is {value[:8]}; must be the same in all layers")
            return value[0]
        return value

    def need(self, key: str) -> Any:
        value = self.get(key, None)
        if value is None:
            raise ValueError(f"it has no {self.architecture}.{key}")
        return value


def config_of(reader: Any) -> ModelConfig:
    """The config of the model in an open GGUF file; ValueError names what is not supported."""
    metadata = _Metadata(reader)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = ModelConfig.from_hf(_hf_config(metadata, tensors), _eos_ids(metadata))
    if (
        metadata.architecture == "llama"
    ):  # each bias may be there or not; transformers has two flags
        config = replace(
            config,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            o_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_gate.bias" in tensors,
        )
    if FREQUENCY_FACTORS in tensors:
        factors = tensors[FREQUENCY_FACTORS].data.tolist()
        if len(factors) != len(config.inv_freq) or not all(f > 0 for f in factors):
            raise ValueError(f"{FREQUENCY_FACTORS} is not {len(config.inv_freq)} positive numbers")
        pairs = zip(config.inv_freq, factors, strict=True)
        config = replace(config, inv_freq=tuple(freq / factor for freq, factor in pairs))
    return config


def is_permuted(reader: Any) -> bool:
    """Whether rows of q and k are in the order of interleaved RoPE: llama.cpp's Llama."""
    return bool(reader.fields["general.architecture"].contents() == "llama")


def _hf_config(metadata: _Metadata, tensors: dict[str, Any]) -> Any:
    """A transformers config, so that all sources share one reading of configs."""
    if metadata.get("expert_count", 0):
        raise ValueError(f"expert_count is {metadata.get('expert_count', 0)}; must be 0")
    if "token_embd.weight" not in tensors:
        raise ValueError("it has no token_embd.weight")
    heads, hidden = metadata.need("attention.head_count"), metadata.need("embedding_length")
    rotated = metadata.get("rope.dimension_count", hidden // heads)
    head_dim = metadata.get("attention.key_length", rotated)
    for key in ("rope.dimension_count", "attention.value_length"):
        if metadata.get(key, head_dim) != head_dim:
            raise ValueError(
                f"{key} is {metadata.get(key, None)}; must be {head_dim}, the head_dim"
            )
    window = metadata.get("attention.sliding_window", 0)
    if window and metadata.architecture != "llama":
        raise ValueError(f"attention.sliding_window is {window}; must be 0")
    kind = "mistral" if window else metadata.architecture
    return import_extra("transformers").AutoConfig.for_model(
        kind,
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        hidden_size=hidden,
        intermediate_size=metadata.need("feed_forward_length"),
        num_hidden_layers=metadata.need("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=metadata.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        rms_norm_eps=metadata.need("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=metadata.need("context_length"),
        rope_parameters=_rope(metadata),
        tie_word_embeddings="output.weight" not in tensors,
        bos_token_id=metadata.get_any("tokenizer.ggml.bos_token_id", None),
        **({"sliding_window": window} if window else {}),
    )


def _rope(metadata: _Metadata) -> dict[str, Any]:
    parameters = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 10_000.0)}
    scaling = metadata.get("rope.scaling.type", "none")
    if scaling == "none":
        return parameters
    if scaling not in ("linear", "yarn"):
        raise ValueError(f"rope.scaling.type is {scaling!r}; must be none, linear or yarn")
    if (factor := metadata.get("rope.scaling.attn_factor", 1.0)) != 1.0:
        raise ValueError(f"rope.scaling.attn_factor is {factor}; must be 1")
    parameters |= {"rope_type": scaling, "factor": metadata.need("rope.scaling.factor")}
    if scaling == "yarn":
        original = metadata.need("rope.scaling.original_context_length")
        parameters["original_max_position_embeddings"] = original
    return parameters


def _eos_ids(metadata: _Metadata) -> tuple[int, ...]:
    """Ends of a text, of a turn and of a message: Llama 3 uses all three."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [metadata.get_any(f"tokenizer.ggml.{name}", None) for name in names]
    return token_ids([token for token in ids if token is not None])

"""What the decoder has to know of a model, from its transformers config."""

from dataclasses import dataclass
from typing import Any, Self

from gossamer.kv.shape import KVShape
from gossamer.models.rope import rope_frequencies, rope_parameters

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# Settings of related models that change what is computed; the decoder has none of them.
REFUSED = (
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "clip_qkv",
    "logit_scale",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "num_experts",
    "num_local_experts",
)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family: dimensions, RoPE, windows, and which biases and norms it has.

    inv_freq: head_dim / 2 inverse frequencies of RoPE. rope_scale: factor on cosines and sines.
    sliding: per layer, how many tokens a query sees including itself; 0 for all of them.
    eos_ids: tokens that end a text. bos_id: the token that begins one, or None. dtype: the type
    that its weights are meant to be computed in, like "bfloat16", where the config says so.
    Raises ValueError for dimensions that do not add up.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    inv_freq: tuple[float, ...]
    rope_scale: float
    max_positions: int
    sliding: tuple[int, ...]
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    eos_ids: tuple[int, ...]
    bos_id: int | None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "max_positions"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; must be an integer >= 1")
        if self.kv_shape.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}; must be even, for RoPE")
        for name, count in (("inv_freq", self.head_dim // 2), ("sliding", self.layers)):
            if len(getattr(self, name)) != count:
                raise ValueError(f"{name} has {len(getattr(self, name))} numbers; must be {count}")
        if not 0 <= self.norm_eps < 1:
            raise ValueError(f"norm_eps is {self.norm_eps}; must be >= 0 and < 1")
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token!r}; must be 0 to {self.vocab_size - 1}")

    @property
    def kv_shape(self) -> KVShape:
        """The dimensions of its attention."""
        return KVShape(self.layers, self.query_heads, self.kv_heads, self.head_dim)

    @property
    def sees(self) -> int:
        """How far every layer sees: the context, or the shortest sliding window."""
        return min(self.max_positions, *(size for size in self.sliding if size), self.max_positions)

    @classmethod
    def from_hf(cls, config: Any, eos_ids: tuple[int, ...] | None = None) -> Self:
        """From a transformers config; `eos_ids` (of a generation config, say) go before its own.

        Raises ValueError, naming it, for anything that the decoder would not compute as
        transformers does: other model types and activations, quantization, softcaps, ...
        """
        require_plain(config)
        kind, heads = config.model_type, config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        inv_freq, rope_scale = rope_frequencies(config, head_dim)
        # As in transformers' modules: Qwen2 always has these three biases, Mistral has none.
        bias = kind in ("llama", "qwen3") and bool(getattr(config, "attention_bias", False))
        return cls(
            model_type=kind,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            layers=config.num_hidden_layers,
            query_heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            norm_eps=float(config.rms_norm_eps),
            inv_freq=inv_freq,
            rope_scale=rope_scale,
            max_positions=_max_positions(config),
            sliding=_sliding(config),
            qkv_bias=bias or kind == "qwen2",
            o_bias=bias,
            mlp_bias=kind == "llama" and bool(getattr(config, "mlp_bias", False)),
            qk_norm=kind == "qwen3",
            tied=bool(config.tie_word_embeddings),
            eos_ids=token_ids(config.eos_token_id) if eos_ids is None else eos_ids,
            bos_id=config.bos_token_id,
            dtype=_dtype(config),
        )


def _dtype(config: Any) -> str | None:
    dtype = getattr(config, "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def require_model_type(model_type: Any) -> None:
    """ValueError unless the decoder computes models of this type."""
    if model_type not in MODEL_TYPES:
        raise ValueError(f"model_type is {model_type!r}; must be one of {', '.join(MODEL_TYPES)}")


def require_plain(config: Any) -> None:
    """ValueError that names the first setting the decoder does not have."""
    require_model_type(getattr(config, "model_type", None))
    if config.hidden_act != "silu":
        raise ValueError(f"hidden_act is {config.hidden_act!r}; must be 'silu'")
    for name in REFUSED:
        if getattr(config, name, None) is not None:
            raise ValueError(f"the config has {name}; models with it are not supported")


def token_ids(value: Any) -> tuple[int, ...]:
    """An eos_token_id as configs have it: None, one id or a list of them, without repetitions."""
    if value is None:
        return ()
    values: list[int] = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(dict.fromkeys(values))


def _max_positions(config: Any) -> int:
    """How far positions go. Qwen states the length before YaRN stretches it."""
    parameters, longest = rope_parameters(config), int(config.max_position_embeddings)
    if parameters.get("rope_type") == "yarn":
        original = parameters.get("original_max_position_embeddings") or longest
        return max(longest, int(original * parameters["factor"]))
    return longest


def _sliding(config: Any) -> tuple[int, ...]:
    """Windows per layer, as transformers' modules choose them."""
    layers: int = config.num_hidden_layers
    window: Any = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if config.model_type == "mistral":  # transformers' Mistral does not look at layer_types
        if len(set(kinds or ())) > 1:
            raise ValueError("layer_types of a mistral model are mixed; must be all the same")
        kinds = ["sliding_attention" if window else "full_attention"] * layers
    if config.model_type == "llama" or kinds is None:
        return (0,) * layers
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"layer_types has {', '.join(sorted(map(str, unknown)))}; "
            "must be full_attention and sliding_attention"
        )
    if "sliding_attention" in kinds and (type(window) is not int or window < 1):
        raise ValueError(f"sliding_window is {window!r}; must be an integer >= 1")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)

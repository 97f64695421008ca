"""Tiny random models in directories and GGUF files, and attention for a whole sequence."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gossamer.models import on_rotated

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

# name: class, extra settings. Together: all RoPEs, GQA and MHA, tied and not, biases, q and k
# norms, windows in all layers and in some, heads that are not hidden_size in all.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4}),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "mistral": ("Mistral", {"sliding_window": 7, "head_dim": 32}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-sliding": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


def tiny_model(family: str, **settings: Any) -> Any:
    """A random model of transformers, in float32."""
    transformers = pytest.importorskip("transformers")
    name, own = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **own, **settings})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):  # they start as zeros, which would hide mistakes
            parameter.data.normal_()
        elif parameter_name.endswith("norm.weight"):  # and these as ones
            parameter.data.uniform_(0.5, 1.5)
    return model


def tiny_directory(family: str, path: Any, **settings: Any) -> Any:
    """The model that was saved at `path`."""
    model = tiny_model(family, **settings)
    model.save_pretrained(path)
    return model


def causal_attend(sliding: tuple[int, ...]) -> Any:
    """Plain attention of one whole sequence that starts at position 0."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        tokens = torch.arange(len(q))
        distance = tokens[:, None] - tokens
        mask = distance >= 0
        if sliding[layer]:
            mask &= distance < sliding[layer]
        heads_first = (x.transpose(0, 1) for x in (q, k, v))
        out = F.scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True)
        return out.transpose(0, 1)

    return attend


@torch.inference_mode()
def logits_of(decoder: Any, ids: torch.Tensor) -> torch.Tensor:
    """[T, vocab] of a whole sequence."""
    attend = on_rotated(causal_attend(decoder.config.sliding))
    return decoder.logits(decoder.forward(ids, torch.arange(len(ids)), attend))


@torch.inference_mode()
def expected_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return model(ids[None], use_cache=False).logits[0]


def random_ids(tokens: int = 40, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randint(0, vocab, (tokens,))


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Within `tolerance` of the largest expected number."""
    error = (actual.double() - expected.double()).abs().max() / expected.double().abs().max()
    assert error < tolerance, float(error)

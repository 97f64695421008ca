"""Tiny random models of the supported families, for the tests here and in tests/kv."""

import copy
from pathlib import Path
from typing import Any

import pytest

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 4096,
}

# name: class, extra settings. Together: with and without biases, GQA, MHA, head_dim * heads that
# is not the hidden size (Qwen3), q and k norms (Qwen3).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 2, "attention_bias": False}),
    "llama-bias": ("Llama", {"num_key_value_heads": 2, "attention_bias": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6, "attention_bias": True}),
    "mistral": ("Mistral", {"num_key_value_heads": 3}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}


def tiny_model(family: str, **settings: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    name, own = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **own, **settings})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):  # they start as zeros, which would hide mistakes
            parameter.data.normal_()
        elif parameter_name.endswith("proj.weight"):
            parameter.data.normal_(std=0.2)
    return model


def write_gguf(model: Any, path: Path) -> None:
    """A Llama as llama.cpp stores it: other names, and rows of q and k in RoPE's other order."""
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*map(chr, range(33, 32 + config.vocab_size)), "!!"])
    writer.add_token_merges(["! !"])
    for id_of in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id):
        id_of(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in copy.deepcopy(model).state_dict().items():
        if "q_proj" in name or "k_proj" in name:
            pairs = weight.view(-1, 2, config.head_dim // 2, config.hidden_size)
            pairs.copy_(pairs.transpose(1, 2).reshape(pairs.shape))
        writer.add_tensor(names.get_name(name, (".weight",)), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

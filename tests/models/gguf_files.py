"""Writes small GGUF files as llama.cpp's converter does."""

from pathlib import Path
from typing import Any

import pytest

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def write_gguf(
    model: Any,
    path: Path,
    arch: str,
    quantization: str = "F32",
    extra: dict[str, Any] | None = None,
    factors: Any = None,
) -> None:
    """A model of transformers as a GGUF file; matrices in the given type, the rest in F32.

    extra: more metadata (integers, floats, strings), by full key. factors: rope_freqs.weight.
    """
    gguf = pytest.importorskip("gguf")
    config, writer = model.config, gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in (extra or {}).items():
        add[type(value)](key, value)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if not (tied and name.startswith("lm_head")):
            weight = permuted(tensor, name, head_dim) if arch == "llama" else tensor
            kind = gguf.GGMLQuantizationType[quantization if weight.dim() == 2 else "F32"]
            data = gguf.quants.quantize(weight.numpy(), kind)
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(tensor: Any, name: str, head_dim: int) -> Any:
    """Rows of q and k in the order of interleaved RoPE."""
    if "q_proj" not in name and "k_proj" not in name:
        return tensor
    halves = tensor.reshape(-1, 2, head_dim // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()

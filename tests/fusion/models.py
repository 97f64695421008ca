"""Tiny models of transformers with random weights, and inputs for them."""

import functools

import torch
import transformers

SIZES = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
NAMES = ("bert", "gpt2", "llama", "t5", "t5-gated", "vit")
BATCH, LENGTH = 2, 24


def config(name: str, layers: int):
    if name == "bert":
        return transformers.BertConfig(vocab_size=99, num_hidden_layers=layers, **SIZES)
    if name == "vit":
        sizes = {"image_size": 32, "patch_size": 8, **SIZES}
        return transformers.ViTConfig(num_hidden_layers=layers, **sizes)
    if name == "gpt2":
        ends = {"bos_token_id": 1, "eos_token_id": 1}
        return transformers.GPT2Config(n_embd=64, n_layer=layers, n_head=2, vocab_size=99, **ends)
    if name == "llama":
        sizes = {"num_key_value_heads": 1, "vocab_size": 99, **SIZES}
        return transformers.LlamaConfig(num_hidden_layers=layers, **sizes)
    gated = {"feed_forward_proj": "gated-gelu"} if name == "t5-gated" else {}
    sizes = {"d_model": 64, "d_kv": 32, "d_ff": 128, "num_heads": 2, "vocab_size": 99}
    return transformers.T5Config(num_layers=layers, decoder_start_token_id=0, **sizes, **gated)


CLASSES = {
    "bert": transformers.BertModel,
    "gpt2": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "t5": transformers.T5ForConditionalGeneration,
    "t5-gated": transformers.T5ForConditionalGeneration,
    "vit": transformers.ViTModel,
}


@functools.cache
def made(name: str, layers: int = 1, attention: str = "sdpa"):
    """A model in float32, with norms and biases that are not 1 and 0."""
    settings = config(name, layers)
    settings._attn_implementation = attention
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False):
        model = CLASSES[name](settings).eval().requires_grad_(False)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return model


def inputs(name: str, dtype=torch.float32, length: int = LENGTH):
    if name == "vit":
        return {"pixel_values": torch.randn(BATCH, 3, 32, 32, dtype=dtype)}
    found = {"input_ids": torch.randint(2, 99, (BATCH, length))}
    if name.startswith("t5"):
        found["decoder_input_ids"] = torch.randint(2, 99, (BATCH, 17))
    return found if name == "bert" else {**found, "use_cache": False}

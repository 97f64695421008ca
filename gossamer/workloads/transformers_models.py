"""Models of transformers with random weights, by name, and inputs of a size for any of them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kv.extras import import_extra

# The dimensions of the models that these names stand for; all of them as transformers has them.
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base": ("BertConfig", "BertModel", {}),
    "bert-large": (
        "BertConfig",
        "BertModel",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "gpt2": ("GPT2Config", "GPT2Model", {}),
    "llama-1b": (
        "LlamaConfig",
        "LlamaModel",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 8192,
            "vocab_size": 128256,
        },
    ),
    "t5-base": (
        "T5Config",
        "T5Model",
        {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    ),
    "vit-b": ("ViTConfig", "ViTModel", {}),
}


def build(name: str, n: int, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """A model of `CONFIGS`, or of a Hugging Face directory, that takes sequences of n tokens.

    Named ones have random weights, and as many positions (or, of images, patches) as n asks for.
    Raises ValueError for other names, ImportError without transformers.
    """
    transformers = import_extra("transformers")
    torch.manual_seed(0)
    if name in CONFIGS:
        config_class, model_class, sizes = CONFIGS[name]
        config = getattr(transformers, config_class)(**{**sizes, **_long_enough(name, n)})
        with torch.device(device):
            model: nn.Module = getattr(transformers, model_class)(config)
    elif (Path(name) / "config.json").is_file():
        model = transformers.AutoModel.from_pretrained(name, local_files_only=True)
    else:
        raise ValueError(
            f"model is {name!r}; must be a Hugging Face directory or one of {', '.join(CONFIGS)}"
        )
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _long_enough(name: str, n: int) -> dict[str, int]:
    """What a config needs for n tokens."""
    if name.startswith("bert"):
        return {"max_position_embeddings": max(512, n)}
    if name == "gpt2":
        return {"n_positions": max(1024, n)}
    if name == "llama-1b":
        return {"max_position_embeddings": max(2048, n)}
    if name == "vit-b":
        return {"image_size": 16 * patches_for(n), "patch_size": 16}
    return {}


def patches_for(n: int) -> int:
    """Along a side of a square image, so that patches and the class token are n or a few less."""
    return int((n - 1) ** 0.5)


def inputs_of(model: nn.Module, batch: int, n: int) -> dict[str, Tensor | bool]:
    """Random tokens (an image for a model of those), of an encoder and a decoder as many."""
    config: Any = model.config
    where = next(model.parameters())
    if hasattr(config, "image_size"):
        shape = (batch, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(shape, dtype=where.dtype, device=where.device)}
    names = ["input_ids"]
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    found: dict[str, Tensor | bool] = {
        name: torch.randint(0, config.vocab_size, (batch, n), device=where.device) for name in names
    }
    if config.model_type != "bert":
        found["use_cache"] = False
    return found


def tokens_of(model: nn.Module, n: int) -> int:
    """How many tokens attention sees of `inputs_of(model, batch, n)`."""
    config: Any = model.config
    if hasattr(config, "image_size"):
        return int((config.image_size // config.patch_size) ** 2 + 1)
    return n

"""Random LoRA adapters in folders as PEFT writes them, and models they are merged into."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(
    folder: Path,
    model: Any,
    *,
    r: int = 4,
    targets: tuple[str, ...] = ALL,
    seed: int = 0,
    **more: Any,
) -> Path:
    """For a model of transformers; strong enough to change what it says. more: of the config."""
    safetensors = __import__("safetensors.torch").torch
    generator = torch.Generator().manual_seed(seed)
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": "somewhere/else",
        "r": r,
        "lora_alpha": 2 * r,
        "target_modules": list(targets),
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "lora_dropout": 0.1,
        "inference_mode": True,
        **more,
    }
    ranks = settings.get("rank_pattern", {})
    tensors = {}
    for name, module in model.named_modules():
        part = name.rpartition(".")[2]
        if part in targets:
            rank, (out, into) = ranks.get(part, r), module.weight.shape
            for side, shape in (("A", (rank, into)), ("B", (out, rank))):
                random = torch.randn(shape, generator=generator) * 0.15
                tensors[f"base_model.model.{name}.lora_{side}.weight"] = random
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def load(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a folder."""
    safetensors = __import__("safetensors.torch").torch
    settings = json.loads((folder / "adapter_config.json").read_text())
    return settings, safetensors.load_file(folder / "adapter_model.safetensors")


def rewrite(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    safetensors = __import__("safetensors.torch").torch
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")


@torch.no_grad()
def save_merged(model: Any, adapter: Path, source: Path, target: Path) -> Path:
    """A copy of the model's folder `source`, with alpha / r * B @ A in its weights."""
    settings, tensors = load(adapter)
    shutil.copytree(source, target)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    for name, a in tensors.items():
        if ".lora_A." in name:
            b = tensors[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").partition(".lora_")[0]
            part, rank = module.rpartition(".")[2], a.shape[0]
            alpha = settings.get("alpha_pattern", {}).get(part, settings["lora_alpha"])
            scale = alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
            weights[f"{module}.weight"] += scale * (b.double() @ a.double()).float()
    model.save_pretrained(target, state_dict=weights)
    return target

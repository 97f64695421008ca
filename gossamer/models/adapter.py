"""LoRA adapters as Hugging Face's PEFT saves them: a config, and two small matrices per module."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.kv.extras import import_extra
from gossamer.models.config import ModelConfig
from gossamer.models.layout import layer_name, layer_shapes
from gossamer.models.problems import reading

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
TENSOR = re.compile(r"base_model\.model\.(model\.layers\.\d+\..+)\.lora_([AB])\.weight")
MODULES = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
# What says how an adapter was trained, or for whom: outputs do not depend on it.
HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "ephemeral_gpu_offload", "eva_config",
    "inference_mode", "lora_dropout", "megatron_core", "peft_version", "qalora_group_size",
    "revision", "runtime_config", "task_type",
}  # fmt: skip
READ = {
    "alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "layers_pattern",
    "layers_to_transform", "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules",
    "use_rslora",
}  # fmt: skip
# With other starts an adapter is one of weights that are not quite the model's.
STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
LARGEST_RANK = 1024
# Keys of rank_pattern and alpha_pattern: a regex without groups and sets, which a name can match in
# a few thousand steps at most.
PATTERN = re.compile(r"[^()\[\]{}*+]*([*+][^()\[\]{}*+]*){0,3}")


@dataclass(frozen=True, eq=False)
class Pair:
    """Of one module: its output changes by x @ a.T @ b.T. a: [r, in]. b: [out, r], scaled."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, eq=False)
class Adapter:
    """pairs: by the module's full name, "model.layers.0.self_attn.q_proj", say.

    digest: of all that outputs depend on. rank: the largest.
    """

    pairs: Mapping[str, Pair]
    digest: bytes
    rank: int


@torch.no_grad()
def read_adapter(folder: str | PathLike[str], config: ModelConfig) -> Adapter:
    """The adapter in a folder, on the CPU and checked to fit the model.

    Raises FileNotFoundError, and ValueError that names the file and the field or tensor of kinds
    that are not supported and of adapters of another model.
    """
    path = Path(folder)
    for name in (CONFIG, WEIGHTS):
        if not (path / name).is_file():
            pickled = f"; {PICKLE}, a pickle, is not read" if (path / PICKLE).is_file() else ""
            raise FileNotFoundError(f"{path}: has no {name}; must be a PEFT adapter{pickled}")
    with reading(path / CONFIG, "not a LoRA config that can be used"):
        settings = _Settings.of(json.loads((path / CONFIG).read_text(encoding="utf-8")))
    with reading(path / WEIGHTS, "not an adapter of this model"):
        tensors: dict[str, Tensor] = import_extra("safetensors.torch").load_file(path / WEIGHTS)
        pairs = _pairs(tensors, settings, config)
    return Adapter(pairs, _digest(pairs), max(pair.a.shape[0] for pair in pairs.values()))


@dataclass(frozen=True)
class _Settings:
    """What outputs depend on of an adapter_config.json. layers: None for all."""

    targets: Any
    excluded: Any
    layers: tuple[int, ...] | None
    ranks: Mapping[str, Any]
    alphas: Mapping[str, Any]
    rank: int
    alpha: float
    rslora: bool

    @classmethod
    def of(cls, data: Any) -> "_Settings":
        if not isinstance(data, dict):
            raise ValueError(f"is a {type(data).__name__}; must be an object")
        _refuse_others(data)
        rank, alpha = data.get("r", 8), data.get("lora_alpha", 8)
        layers = data.get("layers_to_transform")
        settings = cls(
            targets=data.get("target_modules"),
            excluded=data.get("exclude_modules"),
            layers=None if layers is None else tuple([layers] if type(layers) is int else layers),
            ranks=data.get("rank_pattern") or {},
            alphas=data.get("alpha_pattern") or {},
            rank=rank,
            alpha=alpha,
            rslora=bool(data.get("use_rslora")),
        )
        for key in (*settings.ranks, *settings.alphas):
            if not PATTERN.fullmatch(key):
                raise ValueError(
                    f"a pattern is {key!r}; must be a name, or have up to 3 of * and +"
                )
        for name, value in (("r", rank), *(("rank_pattern", r) for r in settings.ranks.values())):
            if type(value) is not int or not 1 <= value <= LARGEST_RANK:
                raise ValueError(f"{name} is {value!r}; must be an integer of 1 to {LARGEST_RANK}")
        for value in (alpha, *settings.alphas.values()):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"lora_alpha is {value!r}; must be a finite number")
        return settings

    def rank_of(self, module: str) -> int:
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        rank, alpha = self.rank_of(module), float(_matching(self.alphas, module, self.alpha))
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def adapts(self, layer: int, module: str) -> bool:
        """Whether tensors of this module must be there; False also where a pattern says it."""
        in_layer = self.layers is None or layer in self.layers
        return in_layer and _listed(module, self.targets) and not _listed(module, self.excluded)


def _refuse_others(data: Mapping[str, Any]) -> None:
    """ValueError that names the first field with which outputs would be others."""
    if data.get("peft_type") != "LORA":
        raise ValueError(f"peft_type is {data.get('peft_type')!r}; must be 'LORA'")
    if data.get("bias", "none") != "none":
        raise ValueError(f"bias is {data['bias']!r}; must be 'none'")
    if data.get("init_lora_weights") not in STARTS:
        raise ValueError(
            f"init_lora_weights is {data['init_lora_weights']!r}, which changes the model's own "
            "weights; must be true, false, 'gaussian', 'orthogonal' or 'eva'"
        )
    for name, value in data.items():
        if value and name not in READ and name not in HARMLESS:
            raise ValueError(f"{name} is {value!r}; adapters with it are not supported")


def _matching(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """What PEFT takes for the module: the first key that is a pattern of its end, else default."""
    keys = (key for key in patterns if re.match(rf"(.*\.)?({key})$", module))
    found = next(keys, None)
    return default if found is None else patterns[found]


def _listed(module: str, names: Any) -> bool:
    """A string is a pattern, of which the tensors alone say what it came to."""
    listed = isinstance(names, list | tuple)
    return listed and any(f".{module}".endswith(f".{name}") for name in names)


def _pairs(
    tensors: Mapping[str, Tensor], settings: _Settings, config: ModelConfig
) -> dict[str, Pair]:
    shapes = _module_shapes(config)
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = TENSOR.fullmatch(name)
        if match is None:
            raise ValueError(f"{name}: only lora_A and lora_B of layers' projections are supported")
        module, side = match.groups()
        if module not in shapes:
            raise ValueError(
                f"{name}: the model has {config.layers} layers with {', '.join(MODULES)}"
            )
        _check(name, tensor, side, settings.rank_of(module), shapes[module])
        found.setdefault(module, {})[side] = tensor
    if not found:
        raise ValueError("has no tensors")
    for layer in range(config.layers):
        for part in MODULES:
            name = layer_name(layer, part)
            missing = {"A", "B"} - found.get(name, {}).keys()
            if missing and (name in found or settings.adapts(layer, name)):
                raise ValueError(f"base_model.model.{name}.lora_{min(missing)}.weight is missing")
    return {
        name: Pair(sides["A"], sides["B"].float() * settings.scale_of(name))
        for name, sides in sorted(found.items())
    }


def _module_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """[out, in] of all modules that can be adapted, by their full name."""
    shapes = layer_shapes(config)
    return {
        layer_name(layer, part): shapes[f"{part}.weight"]
        for layer in range(config.layers)
        for part in MODULES
    }


def _check(name: str, tensor: Tensor, side: str, rank: int, shape: tuple[int, ...]) -> None:
    out, into = shape
    expected = [rank, into] if side == "A" else [out, rank]
    if list(tensor.shape) != expected:
        raise ValueError(
            f"{name} is {list(tensor.shape)}; must be {expected} with rank {rank} of its config"
        )
    if not tensor.is_floating_point() or not tensor.isfinite().all():
        what = "not finite" if tensor.is_floating_point() else f"of {tensor.dtype}"
        raise ValueError(f"{name} is {what}; must be finite floats")


def _digest(pairs: Mapping[str, Pair]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, pair in pairs.items():
        for tensor in (pair.a, pair.b):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()

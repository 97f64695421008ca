"""Tiny quantized checkpoints in every scheme, and their dequantized twins.

Packed bit by bit from what the formats' own packages write, not by what the readers use.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

# Wide enough for blocks of 128 and groups of 128, with a last block that is cut short.
SIZES = {"hidden_size": 256, "intermediate_size": 384 + 32, "num_hidden_layers": 2, "head_dim": 64}
AWQ_CHANNELS = (0, 2, 4, 6, 1, 3, 5, 7)  # that lie in a word, from its lowest 4 bits

# Makes the tensors of a module, by their last names, and what they mean, of a weight [n, k].
Maker = Callable[[int, int], tuple[dict[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Checkpoint:
    """config: the quantization_config. head: whether lm_head is quantized too."""

    config: dict[str, Any]
    make: Maker
    head: bool = False
    key: str = "quantization_config"


def words(codes: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Codes 0 to 15 [a, b] as int32 [a, ceil(b / 8)]; order: which of 8 lies at each 4 bits."""
    padded = torch.nn.functional.pad(codes.long(), (0, -codes.shape[1] % 8))
    total = torch.zeros(len(codes), padded.shape[1] // 8, dtype=torch.long)
    for position, element in enumerate(order):
        total += padded[:, element::8] << 4 * position
    return torch.where(total >= 2**31, total - 2**32, total).int()


def random_int4(n: int, k: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [n, k], zeros of 1 to 15 and float16 scales [n, groups]."""
    codes = torch.randint(0, 16, (n, k))
    zeros = torch.randint(1, 16, (n, k // group))
    return codes, zeros, torch.empty(n, k // group).uniform_(0.005, 0.02).half()


def meaning(codes: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    group = codes.shape[1] // scales.shape[1]
    columns = torch.arange(codes.shape[1]) // group
    return (codes - zeros[:, columns]).float() * scales.float()[:, columns]


def awq(group: int, zeros: bool = True) -> Maker:
    def make(n, k):
        codes, zero, scales = random_int4(n, k, k if group == -1 else group)
        tensors = {"qweight": words(codes.T, AWQ_CHANNELS), "scales": scales.T}
        if zeros:
            tensors["qzeros"] = words(zero.T, AWQ_CHANNELS)
        return tensors, meaning(codes, zero if zeros else torch.full_like(zero, 8), scales)

    return make


def gptq(group: int, minus: int, dtype: torch.dtype = torch.float16, index: bool = True) -> Maker:
    def make(n, k):
        size = k if group == -1 else group
        codes, zero, scales = random_int4(n, k, size)
        scales = scales.to(dtype)
        tensors = {
            "qweight": words(codes).T,
            "qzeros": words(zero.T - minus),
            "scales": scales.T,
            "bias": torch.zeros(n, dtype=torch.float16),  # which AutoGPTQ writes for all
        }
        if index:
            tensors["g_idx"] = (torch.arange(k) // size).int()
        return tensors, meaning(codes, zero, scales)

    return make


def pack_quantized(group: int, symmetric: bool = True, dtype: Any = torch.bfloat16) -> Maker:
    def make(n, k):
        codes, zero, scales = random_int4(n, k, k if group == -1 else group)
        scales = scales.to(dtype)
        tensors = {
            "weight_packed": words(codes),
            "weight_scale": scales,
            "weight_shape": torch.tensor([n, k]),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zero.T).T
        return tensors, meaning(codes, torch.full_like(zero, 8) if symmetric else zero, scales)

    return make


def int8_channels(n: int, k: int) -> tuple[dict[str, Tensor], Tensor]:
    codes = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    scale = torch.empty(n, 1).uniform_(0.0003, 0.001).bfloat16()
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def fp8(shape: str, scale_name: str = "weight_scale", **extra: Tensor) -> Maker:
    def make(n, k):
        codes = (torch.randn(n, k) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        sizes = {
            "number": (),
            "one": (1,),
            "rows": (n, 1),
            "blocks": (-(-n // 128), -(-k // 128)),
        }
        scale = torch.empty(sizes[shape]).uniform_(0.0003, 0.001)
        full = scale
        if shape == "blocks":
            full = scale[torch.arange(n) // 128][:, torch.arange(k) // 128]
        return {"weight": codes, scale_name: scale, **extra}, codes.float() * full

    return make


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "symmetric": True, **weights},
                "input_activations": None,
            }
        },
    }


def awq_config(**settings: Any) -> dict[str, Any]:
    base = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
    return {**base, "group_size": 128, "modules_to_not_convert": None, **settings}


def gptq_config(**settings: Any) -> dict[str, Any]:
    base = {"quant_method": "gptq", "bits": 4, "desc_act": False, "sym": True, "lm_head": False}
    return {**base, "group_size": 128, **settings}


GROUPS = {"strategy": "group", "group_size": 32}
FLOAT8 = {"num_bits": 8, "type": "float"}
DEEPSEEK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
STATIC = {"input_scale": torch.tensor([0.02])}

CHECKPOINTS: dict[str, Checkpoint] = {
    "int4-groups": Checkpoint(compressed("pack-quantized", **GROUPS), pack_quantized(32)),
    "int4-asymmetric": Checkpoint(
        {**compressed("pack-quantized", **GROUPS, symmetric=False), "ignore": []},
        pack_quantized(32, symmetric=False, dtype=torch.float16),
        head=True,
    ),
    "int4-channels": Checkpoint(
        compressed("pack-quantized", strategy="channel", group_size=None),
        pack_quantized(-1),
        key="compression_config",
    ),
    "int8": Checkpoint(
        {**compressed("int-quantized", num_bits=8, strategy="channel"), "ignore": []},
        int8_channels,
        head=True,
    ),
    "fp8-channels": Checkpoint(
        compressed("float-quantized", **FLOAT8, strategy="channel"), fp8("rows")
    ),
    "fp8-static": Checkpoint(
        compressed("float-quantized", **FLOAT8, strategy="tensor"), fp8("one", **STATIC)
    ),
    "awq-32": Checkpoint(awq_config(group_size=32), awq(32)),
    "awq-rows": Checkpoint(awq_config(group_size=-1), awq(-1)),
    "awq-symmetric": Checkpoint(awq_config(group_size=32, zero_point=False), awq(32, zeros=False)),
    "gptq": Checkpoint(gptq_config(group_size=32), gptq(32, minus=1)),
    "gptq-bfloat16": Checkpoint(
        gptq_config(group_size=32, checkpoint_format="gptq"),
        gptq(32, minus=1, dtype=torch.bfloat16, index=False),
    ),
    "gptq-v2": Checkpoint(
        gptq_config(group_size=-1, checkpoint_format="gptq_v2", desc_act=True), gptq(-1, minus=0)
    ),
    "fp8-blocks": Checkpoint(
        {**DEEPSEEK, "weight_block_size": [128, 128]}, fp8("blocks", "weight_scale_inv")
    ),
    "fp8": Checkpoint({**DEEPSEEK, "activation_scheme": "static"}, fp8("number", **STATIC)),
    "fp8-fine-grained": Checkpoint(
        {**DEEPSEEK, "weight_block_size": None}, fp8("one", "weight_scale_inv")
    ),
}


def write_checkpoint(checkpoint: Checkpoint, plain: Any, path: Any, twin: Any) -> None:
    """The model at `plain`, in two versions: quantized at `path`, and dequantized at `twin`."""
    files = pytest.importorskip("safetensors.torch")
    for folder in (path, twin):
        shutil.copytree(plain, folder)
    quantized, floats = {}, {}
    for name, weight in files.load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith("_proj") or (checkpoint.head and module == "lm_head"):
            tensors, floats[name] = checkpoint.make(*weight.shape)
            quantized |= {f"{module}.{part}": tensor for part, tensor in tensors.items()}
        else:
            quantized[name] = floats[name] = weight
    quantized["model.layers.0.self_attn.k_scale"] = torch.tensor(0.5)  # of an fp8 KV cache
    for folder, tensors in ((path, quantized), (twin, floats)):
        save(folder, tensors)
    change_config(path, **{checkpoint.key: checkpoint.config})


def save(path: Any, tensors: dict[str, Tensor]) -> None:
    files = pytest.importorskip("safetensors.torch")
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    files.save_file(whole, path / "model.safetensors")


def change_config(path: Any, **settings: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))

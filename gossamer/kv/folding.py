"""Folds V's basis into a model's projections, where it costs nothing at run time.

With an orthogonal U per KV head, attention over v U followed by an output projection whose columns
were turned by U is attention over v: weights sum rows of V and never mix its coordinates.
Works on modules shaped like those of transformers' Llama, Mistral, Qwen2 and Qwen3.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kv.calibration import Calibration
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.shape import KVShape

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
# Set on each attention layer. It lives as long as the module: a checkpoint saved after folding
# does not remember it.
_FOLDED = "_gossamer_v_basis_folded"


def attention_layers(model: nn.Module) -> list[Any]:
    """The attention modules of a decoder, in order; ValueError when it is built otherwise."""
    layers = [module for name, module in model.named_modules() if _last(name) == "self_attn"]
    if not layers:
        raise ValueError(f"{model_name(model)} has no module called self_attn")
    for index, layer in enumerate(layers):
        for name in PROJECTIONS:
            weight = getattr(getattr(layer, name, None), "weight", None)
            if not isinstance(weight, Tensor) or weight.dim() != 2:
                raise ValueError(f"self_attn of layer {index} has no matrix {name}.weight")
            if weight.is_meta or not weight.is_floating_point():
                kind = "on the meta device" if weight.is_meta else f"of {weight.dtype}"
                raise ValueError(f"{name}.weight of layer {index} is {kind}; must be plain floats")
        if not isinstance(getattr(layer, "head_dim", None), int):
            raise ValueError(f"self_attn of layer {index} has no integer head_dim")
    return layers


def model_name(model: nn.Module) -> str:
    """The file or directory it was loaded from, without the path; else its class."""
    return Path(str(getattr(model, "name_or_path", "") or "")).name or type(model).__name__


def fingerprint(model: nn.Module) -> Fingerprint:
    """The fingerprint of a model, from its modules; ValueError when they are built otherwise."""
    layers = attention_layers(model)
    shape = _shape(layers)
    return Fingerprint.of(shape, (layer.k_proj.weight for layer in layers))


@torch.no_grad()
def fold_v_basis(model: nn.Module, calibration: Calibration) -> None:
    """Turn V of every KV head into the calibration's basis, in place; outputs stay the same.

    Computed in float64 and rounded to the model's dtype once. Raises ValueError, and changes
    nothing, for a calibration of another model, modules of other shapes, and a second time.
    """
    layers = attention_layers(model)
    for index, layer in enumerate(layers):
        if getattr(layer, _FOLDED, False):
            raise ValueError(f"{model_name(model)}: V's basis is already folded (layer {index})")
    calibration.check(fingerprint(model), model_name(model))
    for layer, basis in zip(layers, calibration.v_basis, strict=True):
        _fold(layer, basis)
        setattr(layer, _FOLDED, True)


def _fold(layer: Any, basis: Tensor) -> None:
    value, output = layer.v_proj, layer.o_proj
    kv_heads, head_dim = basis.shape[:2]
    u = basis.to(value.weight.device, torch.float64)
    rows = value.weight.to(torch.float64).reshape(kv_heads, head_dim, -1)
    value.weight.copy_((u.mT @ rows).reshape(value.weight.shape))
    if value.bias is not None:
        bias = value.bias.to(torch.float64).reshape(kv_heads, head_dim, 1)
        value.bias.copy_((u.mT @ bias).reshape(value.bias.shape))
    # [hidden, KV head, its query heads, head_dim]; the output's own bias never meets V.
    wide = output.weight.to(torch.float64)
    columns = wide.reshape(wide.shape[0], kv_heads, -1, head_dim)
    turned = torch.einsum("nhgd,hdc->nhgc", columns, u.to(wide.device))
    output.weight.copy_(turned.reshape(wide.shape))


def _shape(layers: list[Any]) -> KVShape:
    """The dimensions that all layers share; ValueError where one differs or does not add up."""
    dims = layers[0].head_dim
    kv_rows, query_rows = layers[0].k_proj.weight.shape[0], layers[0].q_proj.weight.shape[0]
    hidden = layers[0].k_proj.weight.shape[1]
    if kv_rows % dims or query_rows % dims:
        raise ValueError(f"{query_rows} q and {kv_rows} k rows are not whole heads of {dims}")
    expected = {
        "q_proj": [query_rows, hidden],
        "k_proj": [kv_rows, hidden],
        "v_proj": [kv_rows, hidden],
        "o_proj": [hidden, query_rows],
    }
    for index, layer in enumerate(layers):
        for name, shape in expected.items():
            found = list(getattr(layer, name).weight.shape)
            if found != shape or layer.head_dim != dims:
                raise ValueError(
                    f"{name}.weight of layer {index} is {found} with heads of {layer.head_dim}; "
                    f"must be {shape} with heads of {dims}"
                )
    return KVShape(len(layers), query_rows // dims, kv_rows // dims, dims)


def _last(name: str) -> str:
    return name.rpartition(".")[2]

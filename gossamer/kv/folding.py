"""Folds V's basis into a model's projections, where it costs nothing at run time.

With an invertible M per KV head, attention over v M followed by an output projection whose columns
were turned back by the inverse of M is attention over v: weights sum rows of V and never mix its
coordinates.
Works on modules shaped like those of transformers' Llama, Mistral, Qwen2 and Qwen3.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from gossamer.kv.bases import Basis
from gossamer.kv.calibration import Calibration
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.layouts import Dense, Side
from gossamer.kv.shape import KVShape

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
# Between V and the output, only these are known to leave V's coordinates alone.
CHILDREN = {*PROJECTIONS, "q_norm", "k_norm", "rotary_emb"}
PCA = Side(Dense(), basis="pca")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


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
    k_projections = (layer.k_proj.weight for layer in layers)
    return Fingerprint.of(shape, k_projections, (layer.v_proj.weight for layer in layers))


@torch.no_grad()
def fold_v_basis(model: nn.Module, calibration: Calibration, v: Side = PCA) -> None:
    """Turn V of every KV head into the basis of a calibration, in place; outputs stay the same.

    v: the side of a config whose basis that is, with all bits known (KVConfig.resolve): PCA's, or
    that of coded rows. Computed in float64 and rounded to the model's dtype once. Raises
    ValueError, and changes nothing, for a calibration of another model, for V projections other
    than those that were calibrated (so for a second time, also after saving and loading), and for
    modules whose attention may be more than four plain and separate linear projections.
    """
    basis = calibration.basis("v", v)
    if basis is None:
        raise ValueError(f"v is {v.layout} with basis {v.basis!r}; must be coded or have one")
    layers = attention_layers(model)
    for index, layer in enumerate(layers):
        _require_plain(layer, f"layer {index}", getattr(model, "config", None))
    _require_separate(layers)
    found = fingerprint(model)
    calibration.check(found, model_name(model))
    other = calibration.manifest.fingerprint.first_other_v(found)
    if other is not None:
        raise ValueError(
            f"{model_name(model)}: its value projections are not those that were calibrated "
            f"(first in layer {other}); folded already?"
        )
    for index, layer in enumerate(layers):
        _fold(layer, basis, index)


def _require_plain(layer: Any, where: str, config: Any) -> None:
    """ValueError unless folding is known to be right for this attention layer."""
    own = [name for name, _ in layer.named_parameters(recurse=False)]
    unknown = sorted({name for name, _ in layer.named_children()} - CHILDREN) + own
    if unknown:
        raise ValueError(
            f"self_attn of {where} has {', '.join(unknown)}; folding requires that it has "
            f"nothing but {', '.join(sorted(CHILDREN))}"
        )
    for owner in (layer, getattr(layer, "config", None), config):
        if (clip := getattr(owner, "clip_qkv", None)) is not None:
            raise ValueError(f"self_attn of {where} has clip_qkv {clip}; folding requires None")
    for name in PROJECTIONS:
        proj = getattr(layer, name)
        if is_parametrized(proj):
            raise ValueError(f"{name} of {where} is parametrized; folding requires plain weights")
        if type(proj) is not nn.Linear:
            kind = f"{type(proj).__module__}.{type(proj).__qualname__}"
            raise ValueError(f"{name} of {where} is a {kind}; folding requires a plain nn.Linear")
        for key in ("weight", "bias"):
            tensor = getattr(proj, key)
            plain = type(tensor) is nn.Parameter and tensor.dtype in DTYPES
            if tensor is not None and not plain:
                kind = f"{type(tensor).__name__} of {tensor.dtype}"
                raise ValueError(
                    f"{name}.{key} of {where} is a {kind}; folding requires a plain nn.Parameter "
                    "of float64, float32, float16 or bfloat16"
                )


def _require_separate(layers: list[Any]) -> None:
    """ValueError when weights share memory: turning one would turn the other."""
    owners: dict[tuple[torch.device, int], str] = {}
    for index, layer in enumerate(layers):
        for name in PROJECTIONS:
            for key, tensor in getattr(layer, name).named_parameters():
                this = f"{name}.{key} of layer {index}"
                place = (tensor.device, tensor.untyped_storage().data_ptr())
                if place in owners:
                    raise ValueError(
                        f"{this} shares its memory with {owners[place]}; "
                        "folding requires that each has its own"
                    )
                owners[place] = this


def turn_values(tensor: Tensor, basis: Basis, layer: int) -> Tensor:
    """V's weight [Hk * D, hidden] or bias [Hk * D], turned into the basis; float64."""
    u = basis.matrix[layer].to(tensor.device, torch.float64)
    rows = tensor.to(torch.float64).reshape(*u.shape[:2], -1)
    return (u.mT @ rows).reshape(tensor.shape)


def turn_output(weight: Tensor, basis: Basis, layer: int) -> Tensor:
    """The output projection's weight [hidden, Hq * D] for V in the basis; float64.

    The output's own bias never meets V.
    """
    back = basis.inverse[layer].to(weight.device)
    kv_heads, head_dim = back.shape[:2]
    # [hidden, KV head, its query heads, head_dim]
    columns = weight.to(torch.float64).reshape(weight.shape[0], kv_heads, -1, head_dim)
    return torch.einsum("nhgd,hcd->nhgc", columns, back).reshape(weight.shape)


def _fold(layer: Any, basis: Basis, index: int) -> None:
    value, output = layer.v_proj, layer.o_proj
    value.weight.copy_(turn_values(value.weight, basis, index))
    if value.bias is not None:
        value.bias.copy_(turn_values(value.bias, basis, index))
    output.weight.copy_(turn_output(output.weight, basis, index))


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

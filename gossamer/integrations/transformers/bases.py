"""Calibrated bases and rank weights of one layer, applied outside of the model's weights."""

from dataclasses import dataclass
from os import PathLike

import torch
from torch import Tensor

from gossamer.integrations.transformers.kind import Kind
from gossamer.kv import Calibration, KVConfig, KVShape


@dataclass(frozen=True, eq=False)
class LayerBases:
    """k_basis, v_basis: [kv_heads, D, D], in which K and V are stored; None for their own.

    k_weights: [kv_heads, D], which rank the entries of K; None for magnitudes.
    """

    k_basis: Tensor | None = None
    v_basis: Tensor | None = None
    k_weights: Tensor | None = None

    def turn(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [rows, heads, tokens, D] in the bases; scores stay what they were."""
        if self.k_basis is not None:
            q, k = _turned(q, self.k_basis), _turned(k, self.k_basis)
        return q, k, v if self.v_basis is None else _turned(v, self.v_basis)

    def turn_back(self, out: Tensor) -> Tensor:
        """Attention [rows, tokens, heads, D] over V in its basis, as V itself gives it."""
        if self.v_basis is None:
            return out
        return _turned(out.transpose(1, 2), self.v_basis.mT).transpose(1, 2)


def _turned(x: Tensor, basis: Tensor) -> Tensor:
    grouped = x.unflatten(1, (len(basis), -1))
    return torch.einsum("bhgtd,hde->bhgte", grouped, basis).flatten(1, 2)


def layer_bases(kind: Kind, calibration: Calibration | None) -> list[LayerBases]:
    """For every layer what the spec asks for."""
    if calibration is None:
        return [LayerBases()] * kind.shape.layers
    config = kind.config

    def part(tensor: Tensor | None, layer: int, dtype: torch.dtype) -> Tensor | None:
        return None if tensor is None else tensor[layer].to(kind.device, dtype)

    k_basis = calibration.k_basis if config.k.basis == "pca" else None
    v_basis = calibration.v_basis if config.v.basis == "pca" else None
    weights = calibration.rank_weights(config.k)
    return [
        LayerBases(
            part(k_basis, layer, kind.dtype),
            part(v_basis, layer, kind.dtype),
            part(weights, layer, torch.float32),
        )
        for layer in range(kind.shape.layers)
    ]


def needed_calibration(
    calibration: Calibration | str | PathLike[str] | None, spec: KVConfig, shape: KVShape
) -> Calibration | None:
    """The calibration, read from its file; None where the spec needs none.

    Raises ValueError where it is missing, or made for another shape.
    """
    if not spec.calibrated:
        return None
    if calibration is None:
        raise ValueError(
            f"kv is {spec}, which needs a calibration; make one by `gossamer calibrate`, and pass "
            "calibration=FILE"
        )
    found = calibration if isinstance(calibration, Calibration) else Calibration.load(calibration)
    if found.manifest.shape != shape:
        raise ValueError(
            f"the calibration of {found.manifest.model} is for {found.manifest.shape}; "
            f"the model has {shape}"
        )
    return found

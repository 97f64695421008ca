"""A cache as one model has it: the config with a shape, a type, a device and calibrated tensors."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gossamer.kv.bases import Basis
from gossamer.kv.calibration import Calibration
from gossamer.kv.config import KVConfig
from gossamer.kv.layouts import PLAIN, Dense, Side
from gossamer.kv.rule import CacheRule
from gossamer.kv.shape import KVShape
from gossamer.masks import Mask


@dataclass(frozen=True, eq=False)
class CacheSpec:
    """What a cache is made of: its config in the type, on the device and for the shape of a model.

    k_basis: in which K is stored; k_weights, v_weights: [layers, kv_heads, D] that rows are packed
    with (see Calibration.weights), float32; None for none. prompt_mask: see CacheRule.
    """

    config: KVConfig
    shape: KVShape
    dtype: torch.dtype
    device: torch.device
    k_basis: Basis | None = None
    k_weights: Tensor | None = None
    v_weights: Tensor | None = None
    prompt_mask: Mask | None = None

    @classmethod
    def of(
        cls,
        config: KVConfig,
        shape: KVShape,
        dtype: torch.dtype,
        device: torch.device,
        calibration: Calibration | None = None,
        prompt_mask: Mask | None = None,
    ) -> "CacheSpec":
        """With what the config takes from the calibration; ValueError without it."""
        if config.calibrated and calibration is None:
            raise ValueError(f"kv is {config}, which needs a calibration")
        if calibration is None:
            return cls(config, shape, dtype, device, prompt_mask=prompt_mask)
        config = config.resolve(calibration)
        weights = (calibration.weights("k", config.k), calibration.weights("v", config.v))
        k_weights, v_weights = (None if x is None else x.to(device, torch.float32) for x in weights)
        basis = calibration.basis("k", config.k)
        return cls(config, shape, dtype, device, basis, k_weights, v_weights, prompt_mask)

    def part(self, layers: slice) -> "CacheSpec":
        """The same for some of the layers."""
        shape = replace(self.shape, layers=len(range(self.shape.layers)[layers]))
        basis = None if self.k_basis is None else self.k_basis.part(layers)
        k, v = (None if x is None else x[layers] for x in (self.k_weights, self.v_weights))
        return replace(self, shape=shape, k_basis=basis, k_weights=k, v_weights=v)

    @cached_property
    def rule(self) -> CacheRule:
        return CacheRule.of(self.config, self.dtype, self.prompt_mask)

    @property
    def dense(self) -> Side:
        """How dense pages hold K and V."""
        return Side(Dense(PLAIN[self.dtype]))

    @property
    def stored_bytes(self) -> int:
        """Of a stored page, all layers together."""
        return self.config.block_bytes(self.shape)

    @property
    def dense_bytes(self) -> int:
        return KVConfig(self.dense, self.dense).block_bytes(self.shape)

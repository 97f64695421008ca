"""Random weights for the config of a real model: for benchmarks, which need no sense."""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.models.config import ModelConfig
from gossamer.models.layout import tensor_shapes
from gossamer.models.source import Source, StoredTensor

DEVIATION = 0.02  # what transformers initialises weights with


@dataclass(frozen=True)
class RandomSource:
    """See Source. The config and tokenizer of `base`; tensors from the seed and their names.

    The same seed, dtype and device make the same tensors, in any order. Norms are ones.
    """

    base: Source
    seed: int = 0
    calibration: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.base.name} with random weights"

    @property
    def config(self) -> ModelConfig:
        return self.base.config

    @property
    def packing(self) -> str | None:
        return None

    def tensors(
        self,
        names: Collection[str] | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Iterator[tuple[str, StoredTensor]]:
        for name, shape in tensor_shapes(self.config).items():
            if names is None or name in names:
                yield name, self._make(name, torch.empty(shape, dtype=dtype, device=device))

    def tokenizer(self) -> Any:
        return self.base.tokenizer()

    def _make(self, name: str, memory: Tensor) -> Tensor:
        if name.endswith("norm.weight"):
            return memory.fill_(1)
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator(memory.device)
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        return memory.normal_(0, DEVIATION, generator=generator)

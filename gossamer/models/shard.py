"""Tensor parallelism: which part of a model's heads and MLP one process has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.models.config import ModelConfig


@dataclass(frozen=True)
class Shard:
    """Part `rank` of `size`; the default is the whole model. ValueError for other ranks."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size is {self.size}; must be at least 1")
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank is {self.rank}; must be 0 to {self.size - 1}")

    def reduce(self, x: Tensor) -> Tensor:
        """The sum of x over all ranks, in place; torch.distributed's default group."""
        if self.size > 1:
            torch.distributed.all_reduce(x)
        return x

    def check(self, config: ModelConfig) -> None:
        """ValueError that names both numbers when the model cannot be cut into equal parts."""
        for name in ("query_heads", "kv_heads", "intermediate_size"):
            count = getattr(config, name)
            if count % self.size:
                raise ValueError(f"{name} is {count}; must be a multiple of {self.size} shards")

    def part(self, tensor: Tensor, dim: int | None) -> Tensor:
        """This rank's part of a whole tensor that is split along `dim`; None: not split."""
        if dim is None or self.size == 1:
            return tensor
        length = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * length, length)

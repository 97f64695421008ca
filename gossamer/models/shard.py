"""Tensor parallelism: which part of a model's heads and MLP one process has."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kv.shape import KVShape
from gossamer.models.config import ModelConfig


@dataclass(frozen=True)
class Shard:
    """Part `rank` of `size`; the default is the whole model. ValueError for other ranks.

    Query heads are dealt out in order, and KV heads follow them: where there are fewer than ranks,
    each KV head is on all the ranks that have some of its query heads.
    """

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
        """ValueError that names the numbers when the model cannot be cut into such parts."""
        valid = _sizes(config)
        if self.size not in valid:
            raise ValueError(
                f"tensor_parallel_size is {self.size}, and the model has {config.query_heads} "
                f"query heads, {config.kv_heads} KV heads and an intermediate_size of "
                f"{config.intermediate_size}; must be one of {', '.join(map(str, valid))}"
            )

    def query_heads(self, config: ModelConfig) -> range:
        """Those of this rank."""
        return self._equal(config.query_heads)

    def kv_heads(self, config: ModelConfig) -> range:
        """Those that its query heads attend to."""
        queries, group = self.query_heads(config), config.query_heads // config.kv_heads
        return range(queries.start // group, -(-queries.stop // group))

    def intermediate(self, config: ModelConfig) -> range:
        """Channels of the MLP."""
        return self._equal(config.intermediate_size)

    def kv_shape(self, config: ModelConfig) -> KVShape:
        """The dimensions of its attention."""
        queries, keys = self.query_heads(config), self.kv_heads(config)
        return KVShape(config.layers, len(queries), len(keys), config.head_dim)

    def _equal(self, count: int) -> range:
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)


def _sizes(config: ModelConfig) -> list[int]:
    """Equal parts of query heads and MLP, and KV heads either dealt out or replicated."""
    keys = config.kv_heads
    return [
        size
        for size in range(1, config.query_heads + 1)
        if config.query_heads % size == 0
        and config.intermediate_size % size == 0
        and (keys % size == 0 or size % keys == 0)
    ]

"""Mustafar (arXiv 2505.22913): the largest entries of each token's K and V, the last 32 exact.

Its pruning rule (one entry more than asked for, and ties; see gossamer.kv.mustafar) and its sliding
window: a query sees the last `window` tokens exactly, its own among them, and all others pruned.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.evaluation.peers.method import check_count
from gossamer.evaluation.peers.stored import StoredMethod
from gossamer.kv.mustafar import TILE, compress_key, compress_value, prune
from gossamer.kv.shape import KVShape

SAMPLE = 4096  # tokens


@dataclass(frozen=True)
class Mustafar(StoredMethod):
    """sparsity: of K and V, from 0 to below 1."""

    sparsity: float
    window: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is {self.sparsity}; must be >= 0 and < 1")
        check_count("window", self.window, 1)

    def bytes_per_token(self, shape: KVShape) -> float:
        """In Mustafar's format; see `format_bytes`."""
        return format_bytes(self.sparsity, shape.head_dim) * shape.kv_heads * shape.layers

    def store_k(self, k: Tensor) -> Tensor:
        return prune(k, self.sparsity)

    def store_v(self, v: Tensor) -> Tensor:
        return prune(v, self.sparsity)

    def sees_exact(self, query: Tensor, key: Tensor) -> Tensor:
        return query - key < self.window


@cache
def format_bytes(sparsity: float, head_dim: int) -> float:
    """Bytes of K and V of one token and head: entries, their padding, bitmaps and offsets.

    How much padding there is depends on where the kept entries lie, so this is measured, on 4,096
    tokens of normal entries. A head_dim that tiles of 64 do not divide fills them with zeros.
    """
    x = torch.randn(SAMPLE, head_dim, generator=torch.Generator().manual_seed(0))
    x = prune(x, sparsity).half()
    tiled = F.pad(x, (0, -head_dim % TILE))
    return (compress_key(x).nbytes + compress_value(tiled).nbytes) / SAMPLE

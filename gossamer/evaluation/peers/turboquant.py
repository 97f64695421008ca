"""TurboQuant (arXiv 2504.19874): vectors turned at random, then one codebook for every coordinate.

A vector is its norm in float16 and the direction, which a fixed rotation spreads evenly: every
coordinate is then about normal with variance 1 / D, whatever the model, and is rounded to the
nearest of the 2^bits levels that are best for that (Lloyd-Max).

Differences from the paper: this is its variant for the squared error, without the 1-bit sketch
(QJL) of what is left that makes inner products unbiased; the codebook is that of the normal
distribution, which the paper's tends to as D grows; and the last `window` tokens are exact.
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import HALF, check_count
from gossamer.evaluation.peers.stored import StoredMethod
from gossamer.kv.shape import KVShape

BITS = (2, 3, 4)
SEED = 2504  # of the rotation, which is part of the method: the same in every run


@dataclass(frozen=True)
class TurboQuant(StoredMethod):
    """bits: 2, 3 or 4 of each coordinate. window: exact tokens, the query's own among them."""

    bits: int
    window: int = 32

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits is {self.bits}; must be one of {', '.join(map(str, BITS))}")
        check_count("window", self.window, 0)

    def bytes_per_token(self, shape: KVShape) -> float:
        """Codes and a norm for K and for V. Rotation and codebook are the same for all tokens."""
        vector = shape.head_dim * self.bits / 8 + HALF
        return 2 * vector * shape.kv_heads * shape.layers

    def store_k(self, k: Tensor) -> Tensor:
        return quantize(k, self.bits)

    def store_v(self, v: Tensor) -> Tensor:
        return quantize(v, self.bits)

    def sees_exact(self, query: Tensor, key: Tensor) -> Tensor:
        return query - key < self.window


def quantize(x: Tensor, bits: int) -> Tensor:
    """Vectors x [..., D] as they come back from their norms and codes; float32."""
    x, width = x.float(), x.shape[-1]
    turn = rotation(width).to(x.device, torch.float32)
    norm = x.norm(dim=-1, keepdim=True)
    # A vector of zeros has no direction, and its norm makes every one right.
    direction = x / norm.where(norm > 0, norm.new_ones(()))
    levels = torch.tensor(codebook(bits), device=x.device)
    middles = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize((direction @ turn.mT) * math.sqrt(width), middles)
    restored: Tensor = levels[codes] / math.sqrt(width) @ turn * norm.half().float()
    return restored


@cache
def rotation(width: int) -> Tensor:
    """An orthogonal [width, width] in float64, the same for all heads and layers.

    Hadamard after random signs where the width is a power of two: width * log2(width) additions
    where a matrix needs width^2 products. Elsewhere the Q of a normal matrix, uniform as R's
    diagonal is made positive (arXiv math-ph/0609050).
    """
    generator = torch.Generator().manual_seed(SEED)
    if width & (width - 1) == 0:
        signs = torch.randint(0, 2, (width,), generator=generator, dtype=torch.float64) * 2 - 1
        return _hadamard(width) * signs / math.sqrt(width)
    normal = torch.randn(width, width, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    turned: Tensor = q * r.diagonal().sign()
    return turned


def _hadamard(width: int) -> Tensor:
    found = torch.ones(1, 1, dtype=torch.float64)
    while found.shape[0] < width:
        top, bottom = torch.cat([found, found], 1), torch.cat([found, -found], 1)
        found = torch.cat([top, bottom])
    return found


@cache
def codebook(bits: int) -> tuple[float, ...]:
    """The 2^bits levels of least squared error for a standard normal, ascending.

    By Lloyd's iteration with exact means: a level is the mean of the normal between the middles to
    its neighbours. 4 bits take 449 rounds until no level moves by 1e-9.
    """
    count = 2**bits
    levels = [4 * (i + 0.5) / count - 2 for i in range(count)]
    moved = math.inf
    while moved > 1e-9:
        edges = [-math.inf, *_middles(levels), math.inf]
        means = [_mean(low, high) for low, high in pairwise(edges)]
        moved = max(abs(new - old) for new, old in zip(means, levels, strict=True))
        levels = means
    return tuple(levels)


def _middles(levels: list[float]) -> list[float]:
    return [(low + high) / 2 for low, high in pairwise(levels)]


def _mean(low: float, high: float) -> float:
    """Of a standard normal between these."""
    mass = (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2
    return (_density(low) - _density(high)) / mass


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

"""KIVI (arXiv 2402.02750): keys quantized per channel over tokens, values per token over channels.

Differences from its own code, all in how far back exact tokens reach: here K and V follow the block
rule (the query's own block of 32 tokens and the window / 32 blocks before it are exact), there the
exact keys are 0 to R - 1 and the exact values R = 128. Rounding is KIVI's: to nearest between the
group's minimum and maximum; the scale and the minimum are float16, as they are stored.
"""

from dataclasses import dataclass

from torch import Tensor

from gossamer.evaluation.peers.method import HALF, check_count, dense_bytes
from gossamer.evaluation.peers.stored import StoredMethod
from gossamer.kv.shape import KVShape

GROUP = 32  # tokens of a channel of K, channels of a token of V
BITS = (2, 3, 4, 8, 16)


@dataclass(frozen=True)
class Kivi(StoredMethod):
    """bits: 2, 3, 4 or 8; 16 stores everything as it is. window: a multiple of 32 from 0."""

    bits: int
    window: int = 128
    unit = GROUP

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"bits is {self.bits}; must be one of {', '.join(map(str, BITS))}")
        check_count("window", self.window, 0)
        if self.window % GROUP:
            raise ValueError(f"window is {self.window}; must be a multiple of {GROUP}")

    def bytes_per_token(self, shape: KVShape) -> float:
        if self.bits == 16:
            return dense_bytes(shape)
        if shape.head_dim % GROUP:
            raise ValueError(f"head_dim is {shape.head_dim}; must be a multiple of {GROUP}")
        # Per group of 32 entries: codes, a scale and a minimum. K and V have as many groups.
        group = GROUP * self.bits / 8 + 2 * HALF
        return 2 * shape.head_dim / GROUP * group * shape.kv_heads * shape.layers

    def store_k(self, k: Tensor) -> Tensor:
        if self.bits == 16:
            return k
        blocks = k.unflatten(2, (-1, GROUP))
        return quantize(blocks, self.bits, dim=3).flatten(2, 3)

    def store_v(self, v: Tensor) -> Tensor:
        if self.bits == 16:
            return v
        groups = v.unflatten(3, (-1, GROUP))
        return quantize(groups, self.bits, dim=4).flatten(3, 4)

    def sees_exact(self, query: Tensor, key: Tensor) -> Tensor:
        return key // GROUP >= query // GROUP - self.window // GROUP


def quantize(x: Tensor, bits: int, dim: int) -> Tensor:
    """x after rounding to 2^bits levels between the extremes of each group along `dim`; float32."""
    x = x.float()
    most = 2**bits - 1
    minimum = x.amin(dim, keepdim=True).half().float()
    scale = ((x.amax(dim, keepdim=True) - minimum) / most).half().float()
    # Groups whose entries are all equal (or nearer than float16 can tell) are their minimum.
    codes = ((x - minimum) / scale.where(scale > 0, scale.new_ones(()))).round().clamp(0, most)
    restored: Tensor = codes * scale + minimum
    return restored

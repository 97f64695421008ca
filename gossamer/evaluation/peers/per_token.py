"""8 bits for every entry, with a scale for each token and head: int8, and fp8 (e4m3).

What serving engines call a quantized cache: no calibration, no choice. The scale is what takes the
entry of largest magnitude to the largest code, 127 or 448, in float16, as it is stored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import HALF, check_count
from gossamer.evaluation.peers.stored import StoredMethod
from gossamer.kv.shape import KVShape
from gossamer.ops.checks import one_of

LARGEST = {"int8": 127.0, "fp8": 448.0}  # codes; 448 is the largest float8_e4m3fn


@dataclass(frozen=True)
class PerToken(StoredMethod):
    """kind: int8 or fp8. window: exact tokens, the query's own among them; 0 for none."""

    kind: str
    window: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, LARGEST)
        check_count("window", self.window, 0)

    def bytes_per_token(self, shape: KVShape) -> float:
        """A byte for each entry and a scale, for K and for V."""
        return 2 * (shape.head_dim + HALF) * shape.kv_heads * shape.layers

    def store_k(self, k: Tensor) -> Tensor:
        return quantize(k, self.kind)

    def store_v(self, v: Tensor) -> Tensor:
        return quantize(v, self.kind)

    def sees_exact(self, query: Tensor, key: Tensor) -> Tensor:
        return query - key < self.window


def quantize(x: Tensor, kind: str) -> Tensor:
    """Rows x [..., D] as they come back from their scales and codes; float32."""
    x, largest = x.float(), LARGEST[kind]
    scale = (x.abs().amax(-1, keepdim=True) / largest).half().float()
    # A scale that float16 rounds to 0 makes every entry 0, whatever its code.
    scaled = x / scale.where(scale > 0, scale.new_ones(()))
    # A scale that was rounded down takes the largest entry beyond the last code.
    scaled = scaled.clamp(-largest, largest)
    codes = scaled.round() if kind == "int8" else scaled.to(torch.float8_e4m3fn).float()
    restored: Tensor = codes * scale
    return restored

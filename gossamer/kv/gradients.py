"""How much the loss depends on each coordinate of K, measured on a calibration text."""

import torch
from torch import Tensor

from gossamer.kv.shape import KVShape
from gossamer.ops.kv_block import BLOCK_TOKENS

# The shortest window in which a query sees a key after the first block from beyond its own block
# and the one before that.
SHORTEST_WINDOW = 3 * BLOCK_TOKENS + 1


class Gradients:
    """Second moment of the direction of the loss's gradient at a key, per layer and KV head.

    Only queries that see the key compressed count: those more than a window after it. The gradient
    of each key is scaled to length 1 first, or a few keys that all queries look at would decide
    alone; keys of the first block are left out for the same reason (SmolLM2, keep 19 of 64:
    +0.042 NLL; unscaled and with the first block +0.045; by the queries +0.057).
    """

    def __init__(self, shape: KVShape) -> None:
        size = (shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim)
        self.gg = torch.zeros(size, dtype=torch.float64)
        self.counted = torch.zeros(size[:2], dtype=torch.float64)

    def add(self, layer: int, gradient: Tensor) -> None:
        """Count the keys of one window. gradient: [Hk, T, D]; keys without one do not count."""
        wide = gradient.detach().to(torch.float64)[:, BLOCK_TOKENS:]
        length = wide.norm(dim=-1, keepdim=True)
        direction = torch.where(length == 0, 0.0, wide / length)  # a NaN stays
        self.gg[layer] += (direction.mT @ direction).cpu()
        self.counted[layer] += (length != 0).sum((1, 2)).cpu()

    def mean(self) -> Tensor:
        """[L, Hk, D, D]. Raises ValueError where no key had a gradient."""
        if not bool((self.counted > 0).all()):
            raise ValueError(
                f"no key has a gradient; windows must be at least {SHORTEST_WINDOW} tokens"
            )
        return self.gg / self.counted[..., None, None]

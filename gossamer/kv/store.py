"""The blocks of K or of V: rows in, rows out, in the layout and by the ranking of a policy."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from gossamer.kv.layouts import Coded, Side
from gossamer.kv.policies import POLICIES, Ranking
from gossamer.ops import kv_pack, kv_unpack
from gossamer.ops.kv_block import BlockFormat

MAGNITUDE = Ranking()


ALIGNED = 64  # bytes: a cache line, and the widest vector


def zeros(size: tuple[int, ...], device: torch.device) -> Tensor:
    """uint8 of 0. On a CPU, pages of memory come into being when they are first used.

    A cache of 2 GiB that is mostly empty takes what is in it, and no second to write zeros.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    count = prod(size)
    try:
        memory = np.zeros(count + ALIGNED, dtype=np.uint8)
    except MemoryError:
        raise MemoryError(f"there is no memory for {count} bytes of a cache") from None
    first = -memory.ctypes.data % ALIGNED
    return torch.from_numpy(memory[first : first + count]).view(size)


@dataclass(frozen=True, eq=False)
class BlockStore:
    """Blocks of one layer. blocks: uint8 [num_blocks, heads, side.block_bytes(head_dim)].

    Blocks of several layers are [num_blocks, layers, heads, bytes]; `layer` and `merged` give what
    `write` and `read` take.
    """

    side: Side
    head_dim: int
    blocks: Tensor

    @classmethod
    def allocate(
        cls, side: Side, num_blocks: int, heads: int, head_dim: int, device: str = "cpu"
    ) -> "BlockStore":
        """A store of zeros. Raises ValueError for a head_dim that the layout cannot have."""
        shape = (num_blocks, heads, side.block_bytes(head_dim))
        return cls(side, head_dim, torch.zeros(shape, dtype=torch.uint8, device=device))

    @property
    def nbytes(self) -> int:
        return self.blocks.numel()

    @cached_property
    def fmt(self) -> BlockFormat:
        return self.side.format(self.head_dim)

    def layer(self, layer: int) -> "BlockStore":
        """A view of one layer."""
        return replace(self, blocks=self.blocks[:, layer])

    def merged(self) -> "BlockStore":
        """A view in which the heads of all layers are those of one."""
        return replace(self, blocks=self.blocks.flatten(1, 2))

    def ranking(self, rows: Tensor, weights: Tensor | None) -> Ranking:
        """What rows are packed by: as the policy ranks them, or as their codes are worth.

        weights: [heads, D], see Calibration.weights.
        """
        if isinstance(self.side.layout, Coded):
            return Ranking(weights)
        return POLICIES[self.side.policy].rank(rows, weights)

    def write(self, x: Tensor, slots: Tensor, ranking: Ranking = MAGNITUDE) -> None:
        """Pack rows x [N, heads, head_dim] into slots [N]; see `kv_pack` for both."""
        kv_pack(x, self.blocks, slots, self.fmt, weights=ranking.weights, scores=ranking.scores)

    def read(self, slots: Tensor, dtype: torch.dtype = torch.float16) -> Tensor:
        """Rows [N, heads, head_dim] of slots [N]; see `kv_unpack`."""
        return kv_unpack(self.blocks, slots, self.fmt, dtype)

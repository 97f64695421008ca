"""What becomes of rows that are packed and read again: what a cache costs, without a cache."""

import torch
from torch import Tensor

from gossamer.kv.layouts import Side
from gossamer.kv.store import BlockStore
from gossamer.ops.kv_block import BLOCK_TOKENS


def through_blocks(side: Side, rows: Tensor, weights: Tensor | None) -> Tensor:
    """Rows [tokens, heads, D] after a round through blocks, float32; tokens: a multiple of 32.

    weights: [heads, D] that rows are packed with, see Calibration.weights.
    """
    tokens, heads, head_dim = rows.shape
    rows = rows.contiguous()
    store = BlockStore.allocate(side, tokens // BLOCK_TOKENS, heads, head_dim, str(rows.device))
    slots = torch.arange(tokens, device=rows.device)
    store.write(rows, slots, store.ranking(rows, weights))
    return store.read(slots, torch.float32)

"""Rows through packed blocks, by a policy that remembers: what a cache with it would return."""

import torch
from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.kv import BlockStore, Side, Sparse
from gossamer.kv.policies import Ranking
from gossamer.ops.kv_block import BLOCK_TOKENS


def through_blocks(policy: SequencePolicy, layout: Sparse, x: Tensor, state: PolicyState) -> Tensor:
    """Rows x [N, heads, head_dim], whole blocks of 32 tokens, packed and unpacked; float32.

    By channel, 32 channels of 32 tokens are a block of their own, whose rows are channels and whose
    entries are tokens (channels are padded with zeros to a multiple of 32). Raises ValueError for
    rows that are not whole blocks.
    """
    if x.dim() != 3 or x.shape[0] % BLOCK_TOKENS:
        raise ValueError(
            f"rows have shape {list(x.shape)}; must be [N, heads, head_dim], N a multiple of "
            f"{BLOCK_TOKENS}"
        )
    ranking = policy.rank(x, state)
    if policy.axis == "token":
        return _round_trip(layout, x, ranking)
    scores = x.float() * ranking.weights if ranking.weights is not None else ranking.scores
    by_channel = Ranking(scores=None if scores is None else _transposed(scores))
    rows = _round_trip(layout, _transposed(x), by_channel)
    heads, groups = x.shape[1], rows.shape[1] // x.shape[1]
    # [blocks, channel, heads, group, token] -> [blocks, token, heads, group, channel]
    split = rows.view(-1, BLOCK_TOKENS, heads, groups, BLOCK_TOKENS).permute(0, 4, 2, 3, 1)
    return split.reshape(x.shape[0], heads, groups * BLOCK_TOKENS)[..., : x.shape[2]].contiguous()


def _round_trip(layout: Sparse, rows: Tensor, ranking: Ranking) -> Tensor:
    tokens, heads, width = rows.shape
    store = BlockStore.allocate(
        Side(layout), tokens // BLOCK_TOKENS, heads, width, str(rows.device)
    )
    slots = torch.arange(tokens, device=rows.device)
    store.write(rows, slots, ranking)
    return store.read(slots, torch.float32)


def _transposed(x: Tensor) -> Tensor:
    """[N, heads, head_dim] -> [N, heads * groups of channels, 32 tokens]; rows are channels."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[2] % BLOCK_TOKENS))
    split = padded.view(-1, BLOCK_TOKENS, x.shape[1], padded.shape[2] // BLOCK_TOKENS, BLOCK_TOKENS)
    return split.permute(0, 4, 2, 3, 1).reshape(x.shape[0], -1, BLOCK_TOKENS)

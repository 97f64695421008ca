"""Quest (arXiv 2406.10774): all tokens stay, each query reads the pages that may matter to it.

A page of 16 tokens has the minimum and the maximum of each channel of its keys. For a query q the
sum over channels of max(q min, q max) is at least the score of every key of the page; the pages of
the highest sums are read, and the page of the query's own token always is.

What it saves is reading: in memory it is all of K and V and the pages' extremes, 106% of dense, and
`share` is the part that is read. As in its own code the first two layers read everything (dense=),
so that of 30 layers a quarter is 30% in all. The paper's models have no grouped heads; here the
heads of a group share what is read, by the highest of their sums, since a union of what each of
them would choose is more than the share.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.evaluation.peers.method import (
    HALF,
    ExactCache,
    LayerCache,
    Method,
    Seen,
    check_count,
    check_share,
    dense_bytes,
)
from gossamer.kv.shape import KVShape


@dataclass(frozen=True)
class Quest(Method):
    """share: of the tokens so far, read by each query, above 0; 1 reads everything.

    page: tokens. dense: layers, from the first, that read everything.
    """

    share: float
    page: int = 16
    dense: int = 2

    def __post_init__(self) -> None:
        check_share("share", self.share)
        check_count("page", self.page)
        check_count("dense", self.dense, 0)

    def bytes_per_token(self, shape: KVShape) -> float:
        """More than dense: all of K and V, and two rows for a page in layers that choose."""
        layers = max(shape.layers - self.dense, 0)
        extremes = 2 * HALF * shape.head_dim / self.page * shape.kv_heads * layers
        return dense_bytes(shape) + extremes

    def pages(self, position: int) -> int:
        """How many full pages this query reads, so that with its own page the share is reached."""
        own = position % self.page + 1
        return max(math.ceil((self.share * (position + 1) - own) / self.page), 0)

    def start(self, length: int) -> LayerCache:
        return QuestCache(self)

    def start_layer(self, layer: int, length: int) -> LayerCache:
        return ExactCache() if layer < self.dense else self.start(length)


@dataclass(frozen=True)
class QuestCache(ExactCache):
    method: Quest

    def seen_by(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        if k.shape[0] != 1:
            raise ValueError(f"a batch of {k.shape[0]}; must be one sequence")
        page, tokens = self.method.page, k.shape[2]
        own = positions[:, None] // page  # [T, 1]
        # Pages before the query's own are full, so no bound of theirs knows a later token.
        bounds = page_bounds(q[0], k[0], page)  # [KV heads, T, pages]
        earlier = torch.arange(bounds.shape[2], device=k.device) < own
        bounds = bounds.masked_fill(~earlier, -math.inf)
        # Ties go to the earlier page, on every device.
        order = bounds.sort(dim=-1, descending=True, stable=True).indices
        counts = torch.tensor([self.method.pages(i) for i in positions.tolist()], device=k.device)
        best = torch.arange(bounds.shape[2], device=k.device) < counts[:, None]
        read = torch.zeros_like(order, dtype=torch.bool).scatter_(2, order, best.expand_as(order))
        by_token = F.pad(read.repeat_interleave(page, 2), (0, tokens - page * read.shape[2]))
        by_token |= torch.arange(tokens, device=k.device) // page == own
        everything = self.seen(k, v, positions)
        return replace(everything, visible=everything.visible & by_token)


def page_bounds(q: Tensor, k: Tensor, page: int) -> Tensor:
    """[kv_heads, T, pages]: at least q k of every key of a full page and every head of the group.

    q: [query_heads, T, D]; k: [kv_heads, S, D].
    """
    pages = k.shape[1] // page
    keys = k[:, : pages * page].float().unflatten(1, (pages, page))
    low, high = keys.amin(2), keys.amax(2)  # [KV heads, pages, D]
    queries = q.float().unflatten(0, (k.shape[0], -1))  # [KV heads, group, T, D]
    most = queries.clamp(min=0) @ high.unsqueeze(1).mT + queries.clamp(max=0) @ low.unsqueeze(1).mT
    bounds: Tensor = most.amax(1)
    return bounds

"""The last queries of a sequence: what query-aware policies remember."""

import torch
from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState


def check_window(window: int) -> None:
    """At least one query; ValueError otherwise."""
    if window < 1:
        raise ValueError(f"window is {window}; must be >= 1")


class RecentQueries(PolicyState):
    """The last `window` queries, float32 [at most window, query_heads, head_dim]."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.queries: Tensor | None = None

    def observe_queries(self, queries: Tensor) -> None:
        recent = queries[-self.window :].float()
        if self.queries is not None:
            recent = torch.cat([self.queries, recent])[-self.window :]
        self.queries = recent

    def by_kv_head(self, kv_heads: int) -> Tensor | None:
        """[queries, kv_heads, query heads of each, head_dim]; None before the first query."""
        if self.queries is None or not len(self.queries):
            return None
        if self.queries.shape[1] % kv_heads:
            raise ValueError(
                f"queries have {self.queries.shape[1]} heads; must be a multiple of {kv_heads}"
            )
        split: Tensor = self.queries.unflatten(1, (kv_heads, -1))
        return split

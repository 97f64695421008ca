"""Whole channels of K for a whole sequence: the structured baseline ThinK (arXiv 2407.21018)."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.evaluation.policies.recent_queries import RecentQueries, check_window
from gossamer.kv.policies import Ranking


class ThinKState(RecentQueries):
    """Recent queries until the first rows are packed; from then on the channels' fixed order."""

    importance: Tensor | None = None  # [kv_heads, head_dim]


@dataclass(frozen=True)
class ThinK(SequencePolicy):
    """Keep the channels of largest |Q_c| |K_c|, fixed when a sequence's first rows are packed.

    |Q_c| is the norm over the last `window` queries of all query heads of a KV head (1 before the
    first query), |K_c| the norm over the rows.
    """

    window: int = 32
    name = "think"
    sides = ("k",)

    def __post_init__(self) -> None:
        check_window(self.window)

    def start(self) -> ThinKState:
        return ThinKState(self.window)

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        assert isinstance(state, ThinKState)
        if state.importance is None:
            queries = state.by_kv_head(x.shape[1])
            importance = x.float().norm(dim=0)
            if queries is not None:
                importance = importance * queries.pow(2).sum((0, 2)).sqrt()
            state.importance = importance
        return Ranking(scores=state.importance.expand(x.shape))

"""Keys by what the sequence's own recent queries would make of them: Mustafar's output-aware K."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.evaluation.policies.recent_queries import RecentQueries, check_window
from gossamer.kv.policies import Ranking


@dataclass(frozen=True)
class QueryAware(SequencePolicy):
    """Rank by |k_c| times the mean |q_c| of the last `window` queries, by |k_c| without any."""

    window: int = 32
    name = "query_aware"
    sides = ("k",)

    def __post_init__(self) -> None:
        check_window(self.window)

    def start(self) -> RecentQueries:
        return RecentQueries(self.window)

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        assert isinstance(state, RecentQueries)
        queries = state.by_kv_head(x.shape[1])
        return Ranking() if queries is None else Ranking(weights=queries.abs().mean((0, 2)))

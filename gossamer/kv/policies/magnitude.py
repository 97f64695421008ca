"""The largest entries of each row: Mustafar's choice, and the default."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.kv.policies.base import Policy, PolicyState, Ranking


@dataclass(frozen=True)
class Magnitude(Policy):
    """Rank by |x|."""

    name = "magnitude"

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        return Ranking()

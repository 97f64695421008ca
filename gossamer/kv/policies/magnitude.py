"""The largest entries of each row: Mustafar's choice, and the default."""

from torch import Tensor

from gossamer.kv.policies.base import Policy, Ranking


class Magnitude(Policy):
    """Rank by |x|."""

    name = "magnitude"

    def rank(self, x: Tensor, weights: Tensor | None) -> Ranking:
        return Ranking()

"""Magnitude times what each channel is worth on average, from calibration."""

from torch import Tensor

from gossamer.kv.policies.base import Policy, Ranking


class Weighted(Policy):
    """Rank keys by |k_c| sqrt(E[q_c^2]): the error in a score that leaving k_c out makes.

    Values are stored unweighted.
    """

    name = "weighted"
    sides = ("k",)
    statistic = "weights"

    def rank(self, x: Tensor, weights: Tensor | None) -> Ranking:
        return Ranking(weights=weights)


class Gradient(Weighted):
    """Rank keys by |k_c| times the root mean square of the loss's gradient by k_c.

    Queries that look at few keys weigh more than in `weighted`, which takes all queries alike.
    """

    name = "gradient"
    statistic = "gradients"

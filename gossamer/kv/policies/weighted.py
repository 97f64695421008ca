"""Magnitude times what each channel is worth on average, from calibration."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.kv.policies.base import Policy, PolicyState, Ranking


@dataclass(frozen=True, eq=False)
class Weighted(Policy):
    """Rank keys by |k_c| sqrt(E[q_c^2]): the error in a score that leaving k_c out makes.

    weights: [kv_heads, head_dim], float32, of one layer and of the basis in which K is stored
    (`Calibration.k_weights` or `k_basis_weights`). Values are stored unweighted.
    """

    weights: Tensor
    name = "weighted"
    sides = ("k",)

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        return Ranking(weights=self.weights)


@dataclass(frozen=True, eq=False)
class Gradient(Weighted):
    """Rank keys by |k_c| times the root mean square of the loss's gradient by k_c.

    weights: `Calibration.k_gradients` or `k_basis_gradients`, else as above. Queries that look at
    few keys weigh more than in `weighted`, which takes all queries alike.
    """

    name = "gradient"

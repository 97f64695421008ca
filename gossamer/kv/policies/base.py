"""What every policy is: a rule that ranks the entries of K or V."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Ranking:
    """What `kv_pack` selects by: |x| where both are None, |x * weights|, or |scores|.

    Of coded rows, which keep everything: the weights of their channels in the choice of a scale.

    weights: [heads, head_dim]. scores: [N, heads, head_dim]. float32.
    """

    weights: Tensor | None = None
    scores: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and self.scores is not None:
            raise ValueError("a ranking has weights and scores; must have one of them")


class Policy(ABC):
    """Chooses the entries of each row that a sparse layout keeps.

    name: how specs call it. sides: "k", "v" or both. statistic: what a calibration measures for it
    (see Calibration.rank_weights), None where it needs none.
    """

    name: ClassVar[str]
    sides: ClassVar[tuple[str, ...]] = ("k", "v")
    statistic: ClassVar[str | None] = None

    @abstractmethod
    def rank(self, x: Tensor, weights: Tensor | None) -> Ranking:
        """How the entries of rows x [N, heads, head_dim] rank.

        heads: of one layer, or of several one after another. weights: the statistic of these heads,
        float32 [heads, head_dim]. A row's ranks must depend on the row alone, so that a cache holds
        the same however its tokens were batched, chunked or shared.
        """

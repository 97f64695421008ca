"""What every policy is: a rule that ranks the entries of K or V, and what it remembers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Ranking:
    """What `kv_pack` selects by: |x| where both are None, |x * weights|, or |scores|.

    weights: [heads, head_dim]. scores: [N, heads, head_dim]. float32.
    """

    weights: Tensor | None = None
    scores: Tensor | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and self.scores is not None:
            raise ValueError("a ranking has weights and scores; must have one of them")


class PolicyState:
    """What a policy remembers of one sequence in one layer. This one remembers nothing."""

    def observe_queries(self, queries: Tensor) -> None:
        """Queries [T, query_heads, head_dim] of the sequence's next tokens, as K is stored."""

    def observe_attention(self, mass: Tensor) -> None:
        """Attention [N, kv_heads] that the next N rows to be packed got since the last call."""


class Policy(ABC):
    """Chooses the entries that a sparse layout keeps.

    name: how specs call it. sides: "k", "v" or both. axis: "token" keeps `keep` of the head_dim
    entries of each row; "channel" keeps `keep` of the 32 tokens of a block in each channel.
    """

    name: ClassVar[str]
    sides: ClassVar[tuple[str, ...]] = ("k", "v")
    axis: ClassVar[str] = "token"

    def start(self) -> PolicyState:
        """The state of a new sequence in one layer."""
        return PolicyState()

    @abstractmethod
    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        """How the entries of rows x [N, kv_heads, head_dim], the next ones in order, rank."""

"""Policies that remember their sequence, which those of a cache must not."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from gossamer.kv.policies import Ranking


class PolicyState:
    """What a policy remembers of one sequence in one layer. This one remembers nothing."""

    def observe_queries(self, queries: Tensor) -> None:
        """Queries [T, query_heads, head_dim] of the sequence's next tokens, as K is stored."""

    def observe_attention(self, mass: Tensor) -> None:
        """Attention [N, kv_heads] that the next N rows to be packed got since the last call."""


class SequencePolicy(ABC):
    """Ranks rows by what it remembers of their sequence.

    axis: "token" keeps `keep` of the head_dim entries of each row; "channel" keeps `keep` of the 32
    tokens of a block in each channel (see `through_blocks`).
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

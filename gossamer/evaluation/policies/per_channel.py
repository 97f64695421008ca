"""The largest of 32 tokens in each channel, instead of the largest channels of each token."""

from dataclasses import dataclass

from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.kv.policies import Ranking


@dataclass(frozen=True)
class PerChannel(SequencePolicy):
    """Rank by |v| within a channel, over the 32 tokens of a block."""

    name = "per_channel"
    sides = ("v",)
    axis = "channel"

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        return Ranking()

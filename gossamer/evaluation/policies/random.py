"""Any entries: the control that every other policy must beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.kv.policies import Ranking


class Draws(PolicyState):
    """A stream of random numbers; on the CPU, so that every device keeps the same entries."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Random(SequencePolicy):
    """Rank by random numbers, the same ones for every sequence that starts with this seed."""

    seed: int = 0
    name = "random"

    def start(self) -> Draws:
        return Draws(self.seed)

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        assert isinstance(state, Draws)
        return Ranking(scores=torch.rand(x.shape, generator=state.generator).to(x.device))

"""Values by what they contributed to outputs so far: Mustafar's output-aware V.

Attention is one number per token, so it cannot change which entries of a token are largest: it
decides between tokens, within a channel.
"""

from dataclasses import dataclass

from torch import Tensor

from gossamer.evaluation.policies.base import PolicyState, SequencePolicy
from gossamer.kv.policies import Ranking


class AttentionMass(PolicyState):
    """Attention that the next rows have received, [N, kv_heads]; None: all alike."""

    mass: Tensor | None = None

    def observe_attention(self, mass: Tensor) -> None:
        if self.mass is not None and self.mass.shape != mass.shape:
            raise ValueError(
                f"attention has shape {list(mass.shape)}; "
                f"must be {list(self.mass.shape)}, as before"
            )
        self.mass = mass.float() if self.mass is None else self.mass + mass.float()


@dataclass(frozen=True)
class AttentionWeighted(SequencePolicy):
    """Rank by |v| times received attention within a channel, over the 32 tokens of a block."""

    name = "attention_weighted"
    sides = ("v",)
    axis = "channel"

    def start(self) -> AttentionMass:
        return AttentionMass()

    def rank(self, x: Tensor, state: PolicyState) -> Ranking:
        assert isinstance(state, AttentionMass)
        if state.mass is None:
            return Ranking()
        if state.mass.shape != x.shape[:2]:
            raise ValueError(
                f"attention has shape {list(state.mass.shape)}; must be {list(x.shape[:2])}, "
                "rows and KV heads to be packed"
            )
        scores = x.float().abs() * state.mass.unsqueeze(-1)
        state.mass = None  # the rows after these start anew
        return Ranking(scores=scores)

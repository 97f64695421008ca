"""ThinK (arXiv 2407.21018): whole channels of K, chosen once, at the prompt's end.

Per KV head, the channels of largest |Q_c| |K_c| stay, with the norm over the prompt's last queries
and over its keys. The last `window` keys of the prompt and all later ones keep every channel, and
so does V.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import HALF, LayerCache, Method, Seen, causal, check_count
from gossamer.evaluation.policies.think import ThinK
from gossamer.kv.shape import KVShape


@dataclass(frozen=True)
class ThinKChannels(Method):
    """pruned: the share of K's channels that goes, from 0 to below 1."""

    pruned: float
    window: int = 32
    at_prompt_end = True

    def __post_init__(self) -> None:
        if not 0 <= self.pruned < 1:
            raise ValueError(f"pruned is {self.pruned}; must be >= 0 and < 1")
        check_count("window", self.window)

    def channels(self, head_dim: int) -> int:
        """How many stay."""
        return head_dim - int(self.pruned * head_dim)

    def bytes_per_token(self, shape: KVShape) -> float:
        """Which channels stay is stored once per sequence, which is nothing per token."""
        entries = self.channels(shape.head_dim) + shape.head_dim
        return HALF * entries * shape.kv_heads * shape.layers

    def start(self, length: int) -> "ThinKCache":
        return ThinKCache(self)


class ThinKCache(LayerCache):
    def __init__(self, method: ThinKChannels) -> None:
        self.method = method
        self.kept: Tensor | None = None  # [kv_heads, D]
        self.pruned_tokens = 0

    def end_prompt(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> None:
        if k.shape[0] != 1:
            raise ValueError(f"a batch of {k.shape[0]}; must be one sequence")
        policy = ThinK(self.method.window)
        state = policy.start()
        state.observe_queries(q[0].transpose(0, 1))
        scores = policy.rank(k[0].transpose(0, 1), state).scores
        assert scores is not None
        order = scores[0].sort(dim=-1, descending=True, stable=True).indices
        best = order[:, : self.method.channels(k.shape[3])]
        self.kept = torch.zeros_like(scores[0], dtype=torch.bool).scatter_(1, best, True)
        self.pruned_tokens = max(k.shape[2] - self.method.window, 0)

    def seen(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        visible = causal(positions, k.shape[2])
        exact = torch.arange(k.shape[2], device=k.device) >= self.pruned_tokens
        stored = k if self.kept is None else k * self.kept.unsqueeze(1)
        return Seen(stored, v, exact, visible)

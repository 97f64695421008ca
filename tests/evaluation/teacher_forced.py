"""Teacher forcing by transformers: each layer packs K and V of a window, unpacks them, attends.

Shares no code with the engine but the formats: what the engine's perplexity is compared with.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.kv.bases import turn_q_and_k
from gossamer.kv.calibration import Calibration
from gossamer.kv.config import KVConfig
from gossamer.kv.layouts import Side
from gossamer.kv.policies import POLICIES
from gossamer.kv.store import BlockStore


@dataclass
class PackedAttention:
    """Attention of one window of tokens that sees keys and values as `config` stores them.

    Packs the whole window at once, so only for policies that look at nothing but the row.
    """

    config: KVConfig
    calibration: Calibration

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        positions = torch.arange(q.shape[2], device=q.device)
        near = self.config.sees_dense(positions[:, None], positions)
        k_basis = self._basis(self.config.k, self.calibration.k_basis[layer], k)
        v_basis = self._basis(self.config.v, self.calibration.v_basis[layer], v)
        turned_q, turned_k = turn_q_and_k(q, k, k_basis)
        weights = self.calibration.rank_weights(self.config.k)
        stored_k = self._stored(
            self.config.k, turned_k, None if weights is None else weights[layer]
        )
        stored_v = self._stored(self.config.v, v @ v_basis, None)
        groups = q.shape[1] // k.shape[1]
        # [batch, KV heads, group, tokens, D]
        q, turned_q = (x.unflatten(1, (-1, groups)) * scaling for x in (q, turned_q))
        far = turned_q @ stored_k.unsqueeze(2).mT
        scores = torch.where(near, q @ k.unsqueeze(2).mT, far)
        future = positions > positions[:, None]
        p = scores.masked_fill_(future, -math.inf).softmax(-1)
        out = (p * near) @ v.unsqueeze(2)
        out += (p.masked_fill_(near, 0) @ stored_v.unsqueeze(2)) @ v_basis.unsqueeze(1).mT
        return out.flatten(1, 2)

    @staticmethod
    def _basis(side: Side, basis: Tensor, x: Tensor) -> Tensor:
        if side.basis == "none":
            return torch.eye(x.shape[-1], device=x.device).expand(x.shape[1], -1, -1)
        return basis.to(x.device)

    @staticmethod
    def _stored(side: Side, x: Tensor, weights: Tensor | None) -> Tensor:
        """x [1, heads, tokens, D] after a round through blocks."""
        rows = x[0].transpose(0, 1).contiguous()
        known = None if weights is None else weights.to(x.device)
        store = BlockStore.allocate(
            side, rows.shape[0] // 32, rows.shape[1], rows.shape[2], str(x.device)
        )
        slots = torch.arange(rows.shape[0], device=x.device)
        store.write(rows, slots, POLICIES[side.policy].rank(rows, known))
        return store.read(slots, torch.float32).transpose(0, 1).unsqueeze(0)


@torch.inference_mode()
def token_nll(model: Any, tokens: Tensor, context: int) -> Tensor:
    """NLL of every token but the first of each window, float32."""
    windows = []
    for window in tokens.split(context):
        logits = model(window[None], use_cache=False).logits[0, :-1].float()
        windows.append(F.cross_entropy(logits, window[1:], reduction="none"))
    return torch.cat(windows)

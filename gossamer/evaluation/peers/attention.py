"""Attention of one sequence that sees its cache as a method leaves it."""

import math

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import LayerCache, Method, Seen
from gossamer.integrations.transformers import causal_attention

QUERIES = 512  # at a time: scores are [heads, QUERIES, tokens] in float32


class MethodAttention:
    """An AttentionFunction for one sequence, whose first `prompt` tokens attend exactly.

    length: what a budget is a share of. Keys and values must come with the whole sequence, and the
    prompt in one piece.
    """

    def __init__(self, method: Method, prompt: int, length: int) -> None:
        self.method, self.prompt, self.length = method, prompt, length
        self._layers: dict[int, LayerCache] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        first = k.shape[2] - q.shape[2]
        inside = min(max(self.prompt - first, 0), q.shape[2])
        if layer not in self._layers:
            self._layers[layer] = self.method.start(self.length)
        cache, parts = self._layers[layer], []
        if inside:
            if first or inside != self.prompt:
                raise ValueError(f"{inside} of {self.prompt} prompt tokens; must come in one piece")
            q0, k0, v0 = (x[:, :, :inside] for x in (q, k, v))
            parts.append(causal_attention(layer, q0, k0, v0, scaling))
            cache.end_prompt(q0, k0, v0, scaling)
        for start in range(inside, q.shape[2], QUERIES):
            queries = q[:, :, start : start + QUERIES]
            positions = first + start + torch.arange(queries.shape[2], device=q.device)
            parts.append(attend(queries, k, v, cache.seen(k, v, positions), scaling))
        return torch.cat(parts, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Seen, scaling: float) -> Tensor:
    """softmax(q k) v of [batch, query_heads, T, D] queries; softmax in float32."""
    groups = q.shape[1] // k.shape[1]
    exact, visible = (_by_head(mask) for mask in (seen.exact, seen.visible))
    q = q.unflatten(1, (-1, groups)) * scaling  # [batch, KV heads, group, T, D]
    scores = torch.where(exact, q @ k.unsqueeze(2).mT, q @ seen.k.unsqueeze(2).mT).float()
    p = scores.masked_fill(~visible, -math.inf).softmax(-1).to(v.dtype)
    out = (p * exact) @ v.unsqueeze(2) + (p * ~exact) @ seen.v.unsqueeze(2)
    return out.flatten(1, 2)


def _by_head(mask: Tensor) -> Tensor:
    """[kv_heads, T, S] -> [kv_heads, 1, T, S], so that it broadcasts over the heads of a group."""
    return mask.unsqueeze(-3) if mask.dim() == 3 else mask

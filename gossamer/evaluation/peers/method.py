"""What a cache method is: a rule for what later queries see of keys and values, and its bytes.

Rules are simulated on the keys and values of a model that keeps all of them (after RoPE, as the
model's attention gets them). Two kinds, which differ in what a likelihood means:

- of position: what a query sees follows from where it stands (and, in Quest, from the query). In a
  teacher-forced window every query sees what it would see were its token decoded one by one.
- at the prompt's end (`at_prompt_end`): the rule looks at the prompt once, or at all of it but the
  last `before` tokens, as it must where one cache serves several questions. A teacher-forced window
  is half prompt, half continuation, and only the continuation says anything about the method.

In both, prompts of `generate` are read exactly (but for those last `before` tokens) and the rule
holds from the first new token on.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.integrations.transformers import causal_attention
from gossamer.kv.shape import KVShape

HALF = 2  # bytes of a float16
QUERIES = 512  # at a time: scores are [heads, QUERIES, tokens] in float32


@dataclass(frozen=True, eq=False)
class Seen:
    """What T queries see of S tokens.

    k, v: [batch, kv_heads, S, D], as stored. exact, visible: bool, broadcast to [kv_heads, T, S];
    a visible token is seen as it was where it is exact, as stored elsewhere.
    """

    k: Tensor
    v: Tensor
    exact: Tensor
    visible: Tensor


class LayerCache(ABC):
    """What a method remembers of one sequence in one layer."""

    def end_prompt(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> None:  # noqa: B027
        """The prompt's queries [batch, query_heads, n, D], keys and values, once, before `seen`."""

    @abstractmethod
    def seen(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        """What queries at `positions` [T] see of the exact k, v [batch, kv_heads, S, D]."""

    def seen_by(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        """The same, for rules that look at the queries [batch, query_heads, T, D] themselves."""
        return self.seen(k, v, positions)


class Method(ABC):
    """A rule with its settings."""

    at_prompt_end: ClassVar[bool] = False
    before = 0  # tokens before a prompt's end at which the rule looks at it

    @abstractmethod
    def bytes_per_token(self, shape: KVShape) -> float:
        """Bytes of all layers and heads, as stored; beyond the window where one stays exact.

        Raises ValueError for a shape that the method cannot store.
        """

    @abstractmethod
    def start(self, length: int) -> LayerCache:
        """An empty cache. length: the tokens that a budget is a share of."""

    def start_layer(self, layer: int, length: int) -> LayerCache:
        """The same, for rules that leave some layers (from 0) as they are."""
        return self.start(length)


def dense_bytes(shape: KVShape) -> float:
    """K and V of one token in float16, all layers and heads."""
    return 2 * HALF * shape.head_dim * shape.kv_heads * shape.layers


def causal(positions: Tensor, tokens: int) -> Tensor:
    """[T, tokens]: whether a token is not after the query."""
    return torch.arange(tokens, device=positions.device) <= positions[:, None]


def check_share(name: str, value: float) -> None:
    """Above 0 and at most 1; ValueError otherwise."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value}; must be above 0 and at most 1")


def check_count(name: str, value: int, least: int = 1) -> None:
    """An integer of at least `least`; ValueError otherwise."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}; must be an integer >= {least}")


@dataclass(frozen=True)
class Exact(Method):
    """All keys and values as they are: the control that every method is compared with."""

    def bytes_per_token(self, shape: KVShape) -> float:
        return dense_bytes(shape)

    def start(self, length: int) -> LayerCache:
        return ExactCache()


class ExactCache(LayerCache):
    def seen(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        everything = torch.ones((), dtype=torch.bool, device=k.device)
        return Seen(k, v, everything, causal(positions, k.shape[2]))


# ---- attention of one sequence that sees its cache as a method leaves it ------------------------


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
            self._layers[layer] = self.method.start_layer(layer, self.length)
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
            seen = cache.seen_by(queries, k, v, positions)
            parts.append(attend(queries, k, v, seen, scaling))
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

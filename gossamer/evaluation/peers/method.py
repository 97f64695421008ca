"""What a cache method is: a rule for what later queries see of keys and values, and its bytes.

Rules are simulated on the keys and values of a model that keeps all of them (after RoPE, as the
model's attention gets them). Two kinds, which differ in what a likelihood means:

- of position: what a query sees follows from where it stands. In a teacher-forced window every
  query sees what it would see were its token decoded one by one.
- at the prompt's end (`at_prompt_end`): the rule looks at the prompt once, or at all of it but the
  last `before` tokens, as it must where one cache serves several questions. A teacher-forced window
  is half prompt, half continuation, and only the continuation says anything about the method.

In both, prompts of `generate` are read exactly (but for those last `before` tokens) and the rule
holds from the first new token on.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.kv.shape import KVShape

HALF = 2  # bytes of a float16


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

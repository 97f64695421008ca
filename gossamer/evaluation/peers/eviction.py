"""Methods that keep some tokens and forget the others: StreamingLLM, SnapKV, expected attention.

`share` is the part of the tokens that stays. Kept tokens keep their positions: StreamingLLM's
renumbering within the cache, which matters beyond the trained context, is not simulated.

How a teacher-forced window is measured: StreamingLLM is a rule of position, with a cache of
share * window tokens; queries see everything until it is full, so the share is that of the window's
end. The others compress once, at the prompt's end, and keep every later token.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.evaluation.peers.method import (
    LayerCache,
    Method,
    Seen,
    causal,
    check_count,
    check_share,
    dense_bytes,
)
from gossamer.kv.shape import KVShape


@dataclass(frozen=True)
class Eviction(Method):
    """share: of the tokens that stay, above 0; 1 forgets nothing."""

    share: float

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def bytes_per_token(self, shape: KVShape) -> float:
        """Float16 for the kept share. Which tokens they are need not be stored: K knows."""
        return self.share * dense_bytes(shape)

    def budget(self, tokens: int) -> int:
        """How many of these tokens stay."""
        return math.ceil(self.share * tokens)


@dataclass(frozen=True)
class Streaming(Eviction):
    """StreamingLLM (arXiv 2309.17453): the first tokens, and the most recent ones."""

    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("sinks", self.sinks, 0)

    def start(self, length: int) -> LayerCache:
        """With room for the sinks and the query's own token at least."""
        forgets = self.share < 1
        return StreamingCache(self.sinks, max(self.budget(length), self.sinks + 1), forgets)


@dataclass(frozen=True)
class StreamingCache(LayerCache):
    sinks: int
    room: int
    forgets: bool

    def seen(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        keys = torch.arange(k.shape[2], device=k.device)
        everything = torch.ones((), dtype=torch.bool, device=k.device)
        visible = causal(positions, k.shape[2])
        if self.forgets:
            recent = positions[:, None] - keys < self.room - self.sinks
            visible &= recent | (keys < self.sinks)
        return Seen(k, v, everything, visible)


@dataclass(frozen=True)
class PromptEviction(Eviction):
    """Keeps, per KV head, the prompt tokens of the best scores; see Method for `before`."""

    before: int = field(default=0, kw_only=True)
    at_prompt_end = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("before", self.before, 0)

    @abstractmethod
    def score(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        """Of every prompt token, [kv_heads, n]; infinity for those that stay in any case."""

    def start(self, length: int) -> "PromptEvictionCache":
        return PromptEvictionCache(self)


class PromptEvictionCache(LayerCache):
    def __init__(self, method: PromptEviction) -> None:
        self.method = method
        self.kept: Tensor | None = None  # [kv_heads, n]

    def end_prompt(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> None:
        if k.shape[0] != 1:
            raise ValueError(f"a batch of {k.shape[0]}; must be one sequence")
        score = self.method.score(q, k, v, scaling)
        # Ties go to the earlier token, on every device.
        order = score.sort(dim=-1, descending=True, stable=True).indices
        best = order[:, : self.method.budget(k.shape[2])]
        always = score.isinf()
        self.kept = torch.zeros_like(always).scatter_(1, best, True) | always

    def seen(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        everything = torch.ones((), dtype=torch.bool, device=k.device)
        visible = causal(positions, k.shape[2])
        if self.kept is not None:
            later = k.shape[2] - self.kept.shape[1]
            visible = visible & F.pad(self.kept, (0, later), value=True).unsqueeze(1)
        return Seen(k, v, everything, visible)


@dataclass(frozen=True)
class SnapKV(PromptEviction):
    """SnapKV (arXiv 2404.14469): what the prompt's last queries attend to, and its neighbours.

    window: those queries, whose own tokens always stay, even where they alone are more than the
    share. kernel: tokens over which attention is averaged. The heads of a group share a cache, so
    their attention is averaged too (SnapKV's own code keeps a cache for each query head).
    """

    window: int = 32
    kernel: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("window", self.window)
        check_count("kernel", self.kernel)
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}; must be odd")

    def score(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        tokens = k.shape[2]
        window = min(self.window, tokens)
        positions = torch.arange(tokens - window, tokens, device=k.device)
        recent = q[0, :, -window:].float().unflatten(0, (k.shape[1], -1))
        scores = scaling * recent @ k[0].float().unsqueeze(1).mT  # [KV heads, group, window, n]
        p = scores.masked_fill(~causal(positions, tokens), -math.inf).softmax(-1)
        mass = p[..., : tokens - window].sum(2).mean(1)
        if mass.shape[1]:
            mass = F.avg_pool1d(mass, self.kernel, stride=1, padding=self.kernel // 2)
        return F.pad(mass, (0, window), value=math.inf)


@dataclass(frozen=True)
class Expected(PromptEviction):
    """After expected attention (arXiv 2510.00636): what queries like the prompt's would attend to.

    Queries are taken as normal, with the mean and covariance of the prompt's own beyond the sinks;
    a key's score is its expected exp(q k), normalized over the keys, times the norm of its value.
    Its own code turns the statistics of queries before RoPE to future positions; here they are
    those of queries after RoPE at the prompt's positions.
    """

    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("sinks", self.sinks, 0)

    def score(self, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        sinks = min(self.sinks, k.shape[2] - 1)
        queries = q[0, :, sinks:].float().unflatten(0, (k.shape[1], -1))  # [KV heads, group, n, D]
        keys = k[0, :, sinks:].float().unsqueeze(1)
        mean = queries.mean(2, keepdim=True)
        spread = queries - mean
        covariance = spread.mT @ spread / queries.shape[2]
        # E[exp(q k)] of a normal q is exp(mean k + k covariance k / 2).
        exponent = scaling * (keys @ mean.mT).squeeze(-1)
        exponent = exponent + scaling**2 / 2 * ((keys @ covariance) * keys).sum(-1)
        score = exponent.softmax(-1).mean(1) * v[0, :, sinks:].float().norm(dim=-1)
        return F.pad(score, (sinks, 0), value=math.inf)

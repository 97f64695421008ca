"""What a few queries of one layer see, and what becomes of their attention with K or V stored.

Keys and values are turned into their basis, packed and unpacked as the cache of an engine does it.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gossamer.kv import KVConfig, Side
from gossamer.kv.bases import Basis, QueryKeyTurn, turn
from gossamer.kv.round_trip import through_blocks
from gossamer.ops.kv_block import BLOCK_TOKENS

QUERIES = 32  # spread over the window, in all heads
SINKS = (0, BLOCK_TOKENS)


class Rows(Protocol):
    """Rows of K or V in one basis."""

    def errors(self, side: Side, weights: Tensor | None) -> list[float]:
        """Relative squared errors of outputs with these rows alone stored as `side`, by SINKS.

        weights: [KV heads, D] that rows are packed with.
        """


class View:
    """Some queries of one layer and what they see, heads first, in float32.

    q: [tokens, query heads, D]; k, v: [tokens, KV heads, D], as the model computes them. near:
    [queries, tokens], where a query sees a key dense, or not at all, for each of SINKS. far: what
    attention weighs the others with, for each of SINKS. out: what it gives.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scale: float, sliding: int) -> None:
        self.q, self.k, self.v, self._scale = q, k, v, scale
        tokens, kv_heads = k.shape[:2]
        self._groups = q.shape[1] // kv_heads
        first = 2 * BLOCK_TOKENS  # the first token that sees a stored block
        self._chosen = torch.linspace(first, tokens - 1, QUERIES, device=q.device).round().long()
        at, key = self._chosen.repeat(self._groups)[:, None], torch.arange(tokens, device=q.device)
        self._unseen = key > at
        if sliding:
            self._unseen |= key <= at - sliding
        self.near = [KVConfig(sink=sink).sees_dense(at, key) | self._unseen for sink in SINKS]
        seen = self.scores(self.queries(q), k).softmax(-1)
        self.far = [seen.masked_fill(near, 0.0) for near in self.near]
        self.out = seen @ v.float().transpose(0, 1)

    def queries(self, q: Tensor) -> Tensor:
        """The chosen ones, scaled, [KV heads, queries, D]: head by head of those of a KV head."""
        some = q[self._chosen].float() * self._scale
        by_head: Tensor = some.unflatten(1, (-1, self._groups)).permute(1, 2, 0, 3)
        return by_head.flatten(1, 2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """[KV heads, queries, tokens], -inf where a query does not see a key."""
        return (q @ k.float().permute(1, 2, 0)).masked_fill(self._unseen, -math.inf)

    def keys(self, basis: Basis | None) -> "Keys":
        """basis: of this one layer; None for keys as they are."""
        q, k = self.q, self.k
        if basis is not None:
            q, k = QueryKeyTurn(basis, self._groups, q.dtype, q.device)(0, q, k)
        q = self.queries(q)
        return Keys(self, q, k, self.scores(q, k))

    def values(self, basis: Basis | None) -> "Values":
        """basis: as for keys."""
        if basis is None:
            return Values(self, self.v, None)
        basis = basis.rounded(self.v.dtype)
        rows = turn(self.v.transpose(0, 1), basis.matrix[0]).transpose(0, 1)
        return Values(self, rows, basis.inverse[0])

    def relative(self, difference: Tensor) -> float:
        return float(difference.square().sum() / self.out.square().sum().clamp_min(1e-30))


@dataclass(frozen=True, eq=False)
class Keys:
    """Of a view in some basis, with its queries.

    Near keys are in that basis too: where it takes off a mean, all scores of a query are shifted
    alike, and softmax must not see them next to others.
    """

    view: View
    q: Tensor
    rows: Tensor
    scores: Tensor

    def errors(self, side: Side, weights: Tensor | None) -> list[float]:
        far = self.q @ through_blocks(side, self.rows, weights).permute(1, 2, 0)
        mixed = (torch.where(near, self.scores, far) for near in self.view.near)
        values, out = self.view.v.float().transpose(0, 1), self.view.out
        return [self.view.relative(scores.softmax(-1) @ values - out) for scores in mixed]


@dataclass(frozen=True, eq=False)
class Values:
    """Of a view in some basis. back: its inverse; errors count where outputs are as they were,
    since not every basis leaves lengths as they are.
    """

    view: View
    rows: Tensor
    back: Tensor | None

    def errors(self, side: Side, weights: Tensor | None) -> list[float]:
        stored = through_blocks(side, self.rows, weights).transpose(0, 1)
        if self.back is not None:
            stored = turn(stored, self.back)
        difference = stored - self.view.v.float().transpose(0, 1)
        return [self.view.relative(far @ difference) for far in self.view.far]

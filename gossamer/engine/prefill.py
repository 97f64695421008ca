"""Attention of a chunk of a prompt: far blocks as they are stored, near ones dense.

Queries go in groups. On a GPU, keys that a whole group sees need no mask and take the fastest
kernel; the rest, about a group long, is masked, and the two results are merged by their sums of
exponentials. On a CPU one masked call does both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.engine.block_manager import CacheRule
from gossamer.ops.kv_block import BLOCK_TOKENS

QUERIES_CPU, QUERIES_GPU = 256, 1024  # of a group; multiples of 32

KV = tuple[Tensor, Tensor]  # K and V [tokens, heads, head_dim]


@dataclass(eq=False)
class Pattern:
    """Which keys the queries at positions start to end - 1 see; the same in every layer.

    far, near: positions of the keys that come as stored (from the first block after the sinks on)
    and of those that come dense: first `sinks` from the beginning, then all from `edge` to the end.
    """

    rule: CacheRule
    start: int
    end: int
    far: Tensor
    near: Tensor
    edge: int
    sinks: int
    _masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: CacheRule, start: int, end: int, device: torch.device) -> "Pattern":
        """For a chunk that starts with a block (start is a multiple of 32)."""
        edge = rule.compressed_before(start) * BLOCK_TOKENS
        sinks = min(rule.sink * BLOCK_TOKENS, edge)
        stored = rule.compressed_before(end - 1) * BLOCK_TOKENS
        far = torch.arange(min(rule.sink * BLOCK_TOKENS, stored), stored, device=device)
        near = torch.arange(end, device=device)
        return cls(rule, start, end, far, torch.cat([near[:sinks], near[edge:]]), edge, sinks)

    @property
    def causal(self) -> bool:
        """Whether there is nothing but the queries' own tokens and all before them, dense."""
        return len(self.far) == 0 and self.edge == 0

    def groups(self) -> Iterator[tuple[int, int]]:
        """The position of the first query of each group and of the one after its last."""
        size = QUERIES_CPU if self.near.device.type == "cpu" else QUERIES_GPU
        for first in range(self.start, self.end, size):
            yield first, min(first + size, self.end)

    def far_keys(self, position: int) -> int:
        """How many far keys, from the first on, the query at `position` sees."""
        return max(0, self.rule.compressed_before(position) - self.rule.sink) * BLOCK_TOKENS

    def near_keys(self, first: int, end: int) -> slice:
        """The near keys that queries first to end - 1 may see."""
        shift = self.sinks - self.edge
        if self.rule.sink:
            return slice(0, end + shift)
        return slice(self.rule.compressed_before(first) * BLOCK_TOKENS + shift, end + shift)

    def mask(self, first: int, end: int, far: slice, near: slice, sliding: int) -> Tensor:
        """[queries, far keys + near keys], True where a query sees a key."""
        key = (first, end, far.start, sliding)
        if key not in self._masks:
            query = torch.arange(first, end, device=self.near.device)[:, None]
            far_at, near_at = self.far[far], self.near[near]
            block = query // BLOCK_TOKENS - (0 if self.rule.plain else self.rule.window)
            seen_far = far_at // BLOCK_TOKENS < block
            seen_near = near_at <= query
            if not self.rule.plain:
                own = near_at // BLOCK_TOKENS
                seen_near &= (own >= block) | (own < self.rule.sink)
            seen = torch.cat([seen_far.expand(end - first, -1), seen_near], dim=1)
            if sliding:
                seen &= torch.cat([far_at, near_at]) > query - sliding
            self._masks[key] = seen
        return self._masks[key]

    def bias(self, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """The mask as 0 and -inf; rows lie a multiple of 8 elements apart, as kernels want."""
        key = (id(mask),)
        if key not in self._masks:
            rows, keys = mask.shape
            room = torch.zeros(rows, -(-keys // 8) * 8, dtype=dtype, device=mask.device)
            self._masks[key] = room[:, :keys].masked_fill_(~mask, float("-inf"))
        return self._masks[key]


def attend(
    pattern: Pattern, q: Tensor, far: KV | None, near: KV, scale: float, sliding: int
) -> Tensor:
    """q [tokens, heads, head_dim] over far and near keys, those of `pattern`; like q."""
    queries = q.transpose(0, 1)[None]
    if pattern.causal and not (sliding and pattern.end > sliding):
        return _causal(queries, near, scale)[0].transpose(0, 1)
    out = torch.empty_like(q)
    for first, end in pattern.groups():
        rows = slice(first - pattern.start, end - pattern.start)
        group = _group(pattern, queries[:, :, rows], first, end, far, near, scale, sliding)
        out[rows] = group[0].transpose(0, 1)
    return out


def _causal(queries: Tensor, near: KV, scale: float) -> Tensor:
    k, v = _heads_first(near)
    tokens, keys = queries.shape[2], k.shape[2]
    if tokens == keys:
        return F.scaled_dot_product_attention(
            queries, k, v, is_causal=True, scale=scale, enable_gqa=True
        )
    if queries.device.type == "cpu":
        mask = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens)
    else:
        # Never made in memory. Imported here: it takes a second, as it loads the compiler.
        from torch.nn.attention.bias import causal_lower_right  # noqa: PLC0415

        mask = causal_lower_right(tokens, keys)
    return F.scaled_dot_product_attention(
        queries, k, v, attn_mask=mask, scale=scale, enable_gqa=True
    )


def _group(
    pattern: Pattern,
    queries: Tensor,
    first: int,
    end: int,
    far: KV | None,
    near: KV,
    scale: float,
    sliding: int,
) -> Tensor:
    """Attention of the queries [1, heads, tokens, head_dim] at positions first to end - 1."""
    seen_by_all = 0 if sliding or queries.device.type == "cpu" else pattern.far_keys(first)
    some = slice(seen_by_all, pattern.far_keys(end - 1))
    close = pattern.near_keys(first, end)
    mask = pattern.mask(first, end, some, close, sliding)
    keys = _part(near, close)
    if far is not None:
        keys = joined(_part(far, some), keys)
    k, v = _heads_first(keys)
    if queries.device.type == "cpu":
        return F.scaled_dot_product_attention(
            queries, k, v, attn_mask=mask, scale=scale, enable_gqa=True
        )
    out, lse = _masked(queries, k, v, pattern.bias(mask, queries.dtype), scale)
    if seen_by_all:
        assert far is not None, "far keys are seen, so they are there"
        return _merge(
            out, lse, *_open(queries, *_heads_first(_part(far, slice(seen_by_all))), scale)
        )
    return out


def _part(keys: KV, rows: slice) -> KV:
    return keys[0][rows], keys[1][rows]


def joined(a: KV, b: KV) -> KV:
    """The tokens of both."""
    return torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])


def _heads_first(keys: KV) -> KV:
    """[1, heads, tokens, head_dim]"""
    return keys[0].transpose(0, 1)[None], keys[1].transpose(0, 1)[None]


# ---- on a GPU: with the logarithm of the sum of exponentials, which the public function hides ----


def _masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> KV:
    """Attention and its lse [1, heads, tokens]; bias [tokens, keys] is 0 or -inf, None all 0."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))  # this kernel has no shared KV heads
    by_head = None if bias is None else bias.expand(1, q.shape[1], *bias.shape)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, by_head, True, scale=scale
    )
    return out, lse[:, :, : q.shape[2]]


def _open(q: Tensor, k: Tensor, v: Tensor, scale: float) -> KV:
    """Attention to all keys and its lse."""
    if q.dtype is torch.float32:  # which the fast kernel does not take
        return _masked(q, k, v, None, scale)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)
    return out, lse


def _merge(a: Tensor, a_lse: Tensor, b: Tensor, b_lse: Tensor) -> Tensor:
    weight = torch.sigmoid(a_lse - b_lse).unsqueeze(-1)
    return torch.lerp(b.float(), a.float(), weight).to(a.dtype)

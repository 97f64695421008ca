"""What the decoder calls for attention: write K and V into pages, then attend to them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.engine import prefill
from gossamer.engine.kv_cache import KVCache
from gossamer.engine.prefill import Pattern
from gossamer.kv import turn_q_and_k
from gossamer.ops import DenseWindow, decode_attention, kv_pack, kv_unpack


@dataclass(frozen=True, eq=False)
class DecodeBatch:
    """Sequences that compute one token each: lines of the page tables, int32, and lengths."""

    stored_table: Tensor
    dense_table: Tensor
    seq_lens: Tensor


@dataclass(frozen=True, eq=False)
class PrefillSpan:
    """A chunk of one sequence: its rows in the step, and the slots of keys from before."""

    rows: slice
    pattern: Pattern
    far_slots: Tensor
    near_slots: Tensor


@dataclass(frozen=True, eq=False)
class StepContext:
    """Everything that attention in one step depends on; the same for all layers.

    slots: int64, where each token's K and V go, -1 for nowhere. pack_rows, pack_slots: the tokens
    whose blocks are to be stored compressed in this very step, and where.
    """

    slots: Tensor
    decode: DecodeBatch | None
    prefills: tuple[PrefillSpan, ...]
    pack_rows: Tensor | None = None
    pack_slots: Tensor | None = None


class StepAttention:
    """Attention of one step, called layer by layer: (layer, q, k, v) -> output like q.

    q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; q and k after RoPE.
    """

    def __init__(self, cache: KVCache, sliding: tuple[int, ...], context: StepContext) -> None:
        self.cache, self.sliding, self.context = cache, sliding, context
        self.scale = cache.shape.head_dim**-0.5

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.cache.k_basis is not None:
            basis = self.cache.k_basis[layer]
            q, k = (
                x.transpose(0, 1) for x in turn_q_and_k(q.transpose(0, 1), k.transpose(0, 1), basis)
            )
        self._write(layer, k, v)
        context = self.context
        decodes = 0 if context.decode is None else len(context.decode.seq_lens)
        if context.decode is not None:
            decoded = self._decode(layer, q[:decodes], context.decode)
            if not context.prefills:
                return decoded
        out = torch.empty_like(q)
        if context.decode is not None:
            out[:decodes] = decoded
        for span in context.prefills:
            own = (k[span.rows], v[span.rows])
            out[span.rows] = self._prefill(layer, q[span.rows], own, span)
        return out

    def _write(self, layer: int, k: Tensor, v: Tensor) -> None:
        cache, context = self.cache, self.context
        pools = (cache.k, cache.v) if cache.rule.plain else (cache.dense_k, cache.dense_v)
        for x, pool in zip((k, v), pools, strict=True):
            kv_pack(x, pool[:, layer], context.slots, cache.dense_fmt)
        if context.pack_rows is not None and context.pack_slots is not None:
            weights = None if cache.k_weights is None else cache.k_weights[layer]
            rows, slots = context.pack_rows, context.pack_slots
            kv_pack(k[rows], cache.k[:, layer], slots, cache.k_fmt, weights=weights)
            kv_pack(v[rows], cache.v[:, layer], slots, cache.v_fmt)

    def _decode(self, layer: int, q: Tensor, batch: DecodeBatch) -> Tensor:
        cache, window = self.cache, None
        if not cache.rule.plain:
            window = DenseWindow(
                cache.dense_k[:, layer],
                cache.dense_v[:, layer],
                batch.dense_table,
                cache.config.window,
                cache.config.sink,
                cache.dense_fmt.values,
            )
        out, _ = decode_attention(
            *(q, cache.k[:, layer], cache.v[:, layer], batch.stored_table, batch.seq_lens),
            *(cache.k_fmt, cache.v_fmt),
            window=window,
            scale=self.scale,
            sliding=self.sliding[layer],
        )
        return out

    def _prefill(self, layer: int, q: Tensor, own: prefill.KV, span: PrefillSpan) -> Tensor:
        cache, far, near = self.cache, None, own
        if len(span.far_slots):
            far = (
                kv_unpack(cache.k[:, layer], span.far_slots, cache.k_fmt, cache.dtype),
                kv_unpack(cache.v[:, layer], span.far_slots, cache.v_fmt, cache.dtype),
            )
        if len(span.near_slots):
            pools = (cache.k, cache.v) if cache.rule.plain else (cache.dense_k, cache.dense_v)
            k, v = (
                kv_unpack(pool[:, layer], span.near_slots, cache.dense_fmt, cache.dtype)
                for pool in pools
            )
            near = prefill.joined((k, v), own)
        return prefill.attend(span.pattern, q, far, near, self.scale, self.sliding[layer])

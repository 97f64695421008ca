"""The paged KV cache: pools of stored and of dense pages, written, compressed and attended to here.

Whoever owns sequences (the engine's block manager, the cache of transformers) says in a CacheStep
which pages a forward pass reads and writes; a page knows nothing of requests.
"""

from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.attention import PreparedMask, masked_attention
from gossamer.attention.varlen import Segments, is_one_kernel, varlen_attention
from gossamer.kv.bases import QueryKeyTurn
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.cache_step import CacheStep, Chunk, DecodeBatch, PackedChunks
from gossamer.kv.layouts import Side
from gossamer.kv.store import BlockStore, zeros
from gossamer.masks import Mask
from gossamer.ops import DenseWindow, Rotation, decode_attention, prefill_attention, rope_append
from gossamer.ops.kv_block import BLOCK_TOKENS
from gossamer.ops.prefill_attention import takes_prefill

KV = tuple[Tensor, Tensor]
NARROWEST = 32  # head_dim of masked_attention
READ_TOKENS = 1 << 14  # unpacked at a time: of long contexts there is room for one copy


class Packing(Enum):
    """Which chunks may share a call: none, causal ones, or all by the rule of the cache."""

    NONE = 0
    CAUSAL = 1
    RULE = 2


class Pools(NamedTuple):
    """Stored blocks of K and V, and dense ones."""

    k: BlockStore
    v: BlockStore
    dense_k: BlockStore
    dense_v: BlockStore


class PagedCache:
    """Pools [pages, layers, heads, bytes] of K and V: stored blocks, and dense ones of windows.

    All layers of a page are neighbours, so that one call compresses a block in all of them. Without
    dense pages (a plain cache) the stored ones are the dense ones.
    """

    def __init__(self, spec: CacheSpec, stored_pages: int, dense_pages: int) -> None:
        self.spec, self.rule, config = spec, spec.rule, spec.config
        k, v = self._pool(config.k, stored_pages), self._pool(config.v, stored_pages)
        self.aliased = dense_pages == 0
        dense = [self._pool(spec.dense, dense_pages) for _ in range(0 if self.aliased else 2)]
        self._set(Pools(k, v, *(dense or (k, v))))
        group = spec.shape.query_heads // spec.shape.kv_heads
        self._turn: QueryKeyTurn | None = None
        if spec.k_basis is not None:
            self._turn = QueryKeyTurn(spec.k_basis, group, spec.dtype, spec.device)

    def _pool(self, side: Side, pages: int) -> BlockStore:
        # Zeros: values that nobody wrote are weighted by 0, and 0 times NaN would be NaN.
        shape = self.spec.shape
        size = (pages, shape.layers, shape.kv_heads, side.block_bytes(shape.head_dim))
        return BlockStore(side, shape.head_dim, zeros(size, self.spec.device))

    def _set(self, pools: Pools) -> None:
        """Views are made once: a step asks for those of each layer."""
        self._all = Pools(*(pool.merged() for pool in pools))
        layers = range(self.spec.shape.layers)
        self._layers = [Pools(*(pool.layer(layer) for pool in pools)) for layer in layers]
        self._stores, self.stored_pages = pools, len(pools.v.blocks)

    @property
    def pools(self) -> dict[str, Tensor]:
        """The memory itself, by name: k, v and, where there are dense pages, dense_k, dense_v."""
        names = ("k", "v") if self.aliased else Pools._fields
        return {name: getattr(self._stores, name).blocks for name in names}

    def replace(self, **pools: Tensor) -> None:
        """Other memory for the pools of these names, of as many layers, heads and bytes."""
        if self.aliased:
            pools |= {f"dense_{name}": blocks for name, blocks in pools.items()}
        stores = {
            name: replace(getattr(self._stores, name), blocks=blocks)
            for name, blocks in pools.items()
        }
        self._set(self._stores._replace(**stores))

    def grow(self, stored_pages: int) -> None:
        """Room for `stored_pages`, one pool after the other."""
        if stored_pages <= self.stored_pages:  # asked in every layer of every step
            return
        for name in ("k", "v"):
            old = self.pools[name]
            larger = zeros((stored_pages, *old.shape[1:]), old.device)
            larger[: len(old)] = old
            self.replace(**{name: larger})

    @cached_property
    def packing(self) -> Packing:
        """Which chunks of several sequences are one kernel here; see PackedChunks."""
        shape = self.spec.shape
        q = torch.empty(0, shape.query_heads, shape.head_dim, dtype=self.spec.dtype, device="meta")
        if self.spec.device.type != "cuda":
            return Packing.NONE
        if takes_prefill(q, self.spec.device):
            return Packing.RULE
        return Packing.CAUSAL if is_one_kernel(q) else Packing.NONE

    @property
    def nbytes(self) -> int:
        return sum(pool.numel() for pool in self.pools.values())

    # ---- whole blocks -----------------------------------------------------------------------

    def compress(self, dense_slots: Tensor, stored_slots: Tensor) -> None:
        """Whole blocks from dense into stored pages, all layers at once; int64 [N] slots."""
        dtype, weights = self.spec.dtype, (self.spec.k_weights, self.spec.v_weights)
        k, v = (x.read(dense_slots, dtype) for x in (self._all.dense_k, self._all.dense_v))
        self._store(
            *(self._all, k, v, stored_slots),
            *(None if x is None else x.flatten(0, 1) for x in weights),
        )

    def restore(self, dense_slots: Tensor, stored_slots: Tensor) -> None:
        """The way back: exact where the stored format is the model's own type."""
        k, v, dense_k, dense_v = self._all
        dense_k.write(k.read(stored_slots, self.spec.dtype), dense_slots)
        dense_v.write(v.read(stored_slots, self.spec.dtype), dense_slots)

    def _store(
        self,
        pools: Pools,
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        k_weights: Tensor | None,
        v_weights: Tensor | None,
    ) -> None:
        for store, rows, weights in ((pools.k, k, k_weights), (pools.v, v, v_weights)):
            store.write(rows, slots, store.ranking(rows, weights))

    @torch.inference_mode()
    def randomise(self, generator: torch.Generator) -> None:
        """One block of normal random rows in all pages of each pool: for benchmarks."""
        shape, device = self.spec.shape, self.spec.device
        size = (BLOCK_TOKENS, shape.layers * shape.kv_heads, shape.head_dim)
        slots = torch.arange(BLOCK_TOKENS, device=device)
        for name, pool in self.pools.items():
            rows = torch.randn(size, generator=generator, device=device).to(self.spec.dtype)
            getattr(self._all, name).write(rows, slots)
            pool[1:] = pool[:1]

    # ---- one layer of a forward pass --------------------------------------------------------

    def append(self, layer: int, qkv: Tensor, rotation: Rotation, slots: Tensor) -> Tensor:
        """Store K and V of a projection in dense pages; its queries, after RoPE and `turn`."""
        pools, turn = self._layers[layer], None if self._turn is None else self._turn.of(layer)
        return rope_append(qkv, rotation, pools.dense_k.blocks, pools.dense_v.blocks, slots, turn)

    def turn(self, layer: int, q: Tensor, k: Tensor) -> KV:
        """q [tokens, heads, D] and k [tokens, kv_heads, D] after RoPE, in the basis of K if any."""
        return (q, k) if self._turn is None else self._turn(layer, q, k)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: CacheStep,
        scale: float,
        sliding: int,
        out: Tensor | None = None,
    ) -> Tensor:
        """Store K and V of the step's tokens and attend with their queries; like q.

        q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; q and k from `turn`.
        sliding: how many tokens back the layer sees, 0 for all. Tokens of no sequence give zeros.
        out: where the result is written, if it is given.
        """
        self._pack(layer, k, v, step)
        # A page may hold what a chunk still sees of the past, so those are written last; not where
        # no page is given away in a step: one write is less work for the host than two.
        decodes = 0 if step.decode is None else len(step.decode.seq_lens)
        at_once = not step.chunks and (step.packed is None or self.aliased)
        first = len(q) if at_once else decodes
        if first:
            self.write(layer, k[:first], v[:first], step.slots[:first])
        parts = self._attended(layer, q, k, v, step, scale, sliding)
        if first < len(q):
            self.write(layer, k[first:], v[first:], step.slots[first:])
        return _joined(parts, q, out)

    def _pack(self, layer: int, k: Tensor, v: Tensor, step: CacheStep) -> None:
        """Blocks that are complete and seen compressed in this very step."""
        if step.pack_tokens is None or step.pack_slots is None:
            return
        weights = (self.spec.k_weights, self.spec.v_weights)
        of_layer = (None if x is None else x[layer] for x in weights)
        rows = (k[step.pack_tokens], v[step.pack_tokens])
        self._store(self._layers[layer], *rows, step.pack_slots, *of_layer)

    def _attended(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        step: CacheStep,
        scale: float,
        sliding: int,
    ) -> list[tuple[slice, Tensor]]:
        """Of single tokens, of packed chunks, of the others: which tokens, and their outputs."""
        parts: list[tuple[slice, Tensor]] = []
        if step.decode is not None:
            part = slice(0, len(step.decode.seq_lens))
            parts.append((part, self.decode(layer, q[part], step.decode, scale, sliding)))
        if step.packed is not None:
            part = step.packed.tokens
            packed = self._packed(layer, q[part], k[part], v[part], step.packed, scale, sliding)
            parts.append((part, packed))
        for chunk in step.chunks:
            part = chunk.tokens
            mask = chunk.prepared(sliding, q.device)
            keys = self._keys(layer, chunk, k[part], v[part])
            parts.append((part, attend_masked(q[part], *keys, mask, scale)))
        return parts

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Rows into dense pages."""
        self._layers[layer].dense_k.write(k, slots)
        self._layers[layer].dense_v.write(v, slots)

    def decode(
        self, layer: int, q: Tensor, batch: DecodeBatch, scale: float, sliding: int
    ) -> Tensor:
        """Attend with one query of each sequence to what is in its pages; as in `attend`."""
        k, v, dense_k, dense_v = self._layers[layer]
        config, window = self.spec.config, None
        if not self.aliased:
            pools = (dense_k.blocks, dense_v.blocks, batch.dense_table)
            window = DenseWindow(*pools, config.window, config.sink, dense_k.fmt.values)
        out, _ = decode_attention(
            *(q, k.blocks, v.blocks, batch.stored_table, batch.seq_lens, k.fmt, v.fmt),
            window=window,
            scale=scale,
            sliding=sliding,
        )
        return out

    def _packed(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chunks: PackedChunks,
        scale: float,
        sliding: int,
    ) -> Tensor:
        """Attention of all packed chunks; q, k and v are theirs."""
        if chunks.past is not None:
            k, v = self._near_keys(layer, chunks, k, v)
        if isinstance(chunks.plan, Segments):
            return varlen_attention(q, k, v, chunks.plan, scale=scale, sliding=sliding)
        pools, config, far = self._layers[layer], self.spec.config, None
        if chunks.far is not None:
            stores = (pools.k, pools.v)
            far_k, far_v = (store.read(chunks.far, self.spec.dtype) for store in stores)
            far = (far_k, far_v)
        window, sink = (None, 0) if self.rule.plain else (config.window, config.sink)
        return prefill_attention(
            *(q, k, v, chunks.plan, far),
            scale=scale,
            window=window,
            sink=sink,
            sliding=sliding,
        )

    def _near_keys(self, layer: int, chunks: PackedChunks, k: Tensor, v: Tensor) -> KV:
        """Dense keys of packed chunks: those from before, out of their pages, and their own."""
        assert chunks.past is not None
        pools, total = self._layers[layer], len(chunks.past) + len(k)
        keys, values = (x.new_empty(total, *x.shape[1:]) for x in (k, v))
        for out, own, store in ((keys, k, pools.dense_k), (values, v, pools.dense_v)):
            out[chunks.past_at] = store.read(chunks.past, self.spec.dtype)
            out[chunks.own_at] = own
        return keys, values

    def _keys(self, layer: int, chunk: Chunk, k: Tensor, v: Tensor) -> KV:
        """The keys of a chunk's mask: those from before, out of their pages, and its own."""
        if not chunk.past:
            return k, v
        pools = self._layers[layer]
        keys, values = (x.new_empty(chunk.mask.lengths[1], *x.shape[1:]) for x in (k, v))
        end = 0
        for dense, slots in chunk.past:
            for part in slots.split(READ_TOKENS):
                start, end = end, end + len(part)
                for out, store in (
                    (keys, pools.dense_k if dense else pools.k),
                    (values, pools.dense_v if dense else pools.v),
                ):
                    out[start:end] = store.read(part, self.spec.dtype)
        keys[end:], values[end:] = k, v
        return keys, values


def _joined(parts: list[tuple[slice, Tensor]], like: Tensor, out: Tensor | None) -> Tensor:
    """Outputs of all tokens, in their order; zeros for tokens of no part (padding)."""
    outputs = [output for _, output in parts]
    if sum(map(len, outputs)) == len(like):
        if len(outputs) > 1:
            return torch.cat(outputs, out=out)
        return outputs[0] if out is None else out.copy_(outputs[0])
    whole = torch.zeros_like(like) if out is None else out.zero_()
    for tokens, output in parts:
        whole[tokens] = output
    return whole


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | PreparedMask, scale: float
) -> Tensor:
    """masked_attention of one sequence: q, k, v and result [tokens, heads, head_dim]."""
    head_dim = q.shape[-1]
    if head_dim < NARROWEST:  # of toy models: zeros change no score
        q, k, v = (F.pad(x, (0, NARROWEST - head_dim)) for x in (q, k, v))
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out: Tensor = masked_attention(q, k, v, mask, scale=scale)[0].transpose(0, 1)
    return out[..., :head_dim]


def slots_of(pages: Tensor) -> Tensor:
    """All slots of these pages, int64 [32 * pages], in order."""
    offsets = torch.arange(BLOCK_TOKENS, device=pages.device)
    return (pages.long()[:, None] * BLOCK_TOKENS + offsets).flatten()

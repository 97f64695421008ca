"""The paged KV cache: pools of stored and of dense pages, written, compressed and attended to here.

Whoever owns sequences (the engine's block manager, the cache of transformers) says in a CacheStep
which pages a forward pass reads and writes; a page knows nothing of requests.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.attention import PREPARED, PreparedMask, masked_attention
from gossamer.kv.bases import QueryKeyTurn
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.layouts import Coded, Side
from gossamer.kv.policies import POLICIES, Ranking
from gossamer.kv.rule import ChunkMask
from gossamer.kv.store import BlockStore
from gossamer.masks import Mask
from gossamer.ops import DenseWindow, decode_attention
from gossamer.ops.kv_block import BLOCK_TOKENS

KV = tuple[Tensor, Tensor]
NARROWEST = 32  # head_dim of masked_attention
READ_TOKENS = 1 << 14  # unpacked at a time: of long contexts there is room for one copy


@dataclass(frozen=True, eq=False)
class DecodeBatch:
    """Sequences that compute one token each: page tables [N, pages] and lengths [N], int32."""

    stored_table: Tensor
    dense_table: Tensor
    seq_lens: Tensor


@dataclass(frozen=True, eq=False)
class Chunk:
    """Several tokens of one sequence. tokens: which of the step they are.

    past: (whether in dense pages, slots) of the keys from before, in the order of the mask.
    """

    tokens: slice
    mask: ChunkMask
    past: tuple[tuple[bool, Tensor], ...]
    _prepared: dict[int, PreparedMask] = field(default_factory=dict)

    def prepared(self, sliding: int, device: torch.device) -> PreparedMask:
        """The mask of layers with this sliding window, prepared once for all of them."""
        if sliding not in self._prepared:
            mask = self.mask.sliding(sliding)
            self._prepared[sliding] = PREPARED.get(mask, *self.mask.lengths, device)
        return self._prepared[sliding]


@dataclass(frozen=True, eq=False)
class CacheStep:
    """Everything that attention in one forward pass depends on; the same for all layers.

    Tokens of `decode` come first, then those of the chunks. slots: int64, where each token's K and
    V go in dense pages, -1 for nowhere. pack_tokens, pack_slots: tokens whose blocks are complete
    and are seen compressed in this very step, and where they are stored.
    """

    slots: Tensor
    decode: DecodeBatch | None
    chunks: tuple[Chunk, ...] = ()
    pack_tokens: Tensor | None = None
    pack_slots: Tensor | None = None


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
        zeros = torch.zeros(size, dtype=torch.uint8, device=self.spec.device)
        return BlockStore(side, shape.head_dim, zeros)

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
            larger = old.new_zeros(stored_pages, *old.shape[1:])
            larger[: len(old)] = old
            self.replace(**{name: larger})

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
        """Rows as their policies rank them, or as their codes are worth."""
        config = self.spec.config
        for store, side, rows, weights in (
            (pools.k, config.k, k, k_weights),
            (pools.v, config.v, v, v_weights),
        ):
            coded = isinstance(side.layout, Coded)
            ranking = Ranking(weights) if coded else POLICIES[side.policy].rank(rows, weights)
            store.write(rows, slots, ranking)

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
    ) -> Tensor:
        """Store K and V of the step's tokens and attend with their queries; like q.

        q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; q and k from `turn`.
        sliding: how many tokens back the layer sees, 0 for all. Tokens of no sequence give zeros.
        """
        if step.pack_tokens is not None and step.pack_slots is not None:
            weights = (self.spec.k_weights, self.spec.v_weights)
            of_layer = (None if x is None else x[layer] for x in weights)
            rows = (k[step.pack_tokens], v[step.pack_tokens])
            self._store(self._layers[layer], *rows, step.pack_slots, *of_layer)
        if not step.chunks:
            assert step.decode is not None, "a step has tokens"
            self.write(layer, k, v, step.slots)
            return self.decode(layer, q, step.decode, scale, sliding)
        out, decodes = torch.zeros_like(q), 0
        if step.decode is not None:
            decodes = len(step.decode.seq_lens)
            self.write(layer, k[:decodes], v[:decodes], step.slots[:decodes])
            out[:decodes] = self.decode(layer, q[:decodes], step.decode, scale, sliding)
        for chunk in step.chunks:
            part = chunk.tokens
            mask = chunk.prepared(sliding, q.device)
            keys = self._keys(layer, chunk, k[part], v[part])
            out[part] = attend_masked(q[part], *keys, mask, scale)
        # Last: a page may hold what a chunk still saw of the past.
        self.write(layer, k[decodes:], v[decodes:], step.slots[decodes:])
        return out

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

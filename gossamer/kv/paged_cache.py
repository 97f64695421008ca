"""The paged KV cache: pools of stored and of dense pages, written, compressed and attended to here.

Whoever owns sequences (the engine's block manager, the cache of transformers) says in a CacheStep
which pages a forward pass reads and writes; a page knows nothing of requests.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.attention import masked_attention
from gossamer.kv.bases import turn_q_and_k
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.layouts import Side
from gossamer.kv.policies import POLICIES
from gossamer.kv.rule import ChunkMask
from gossamer.kv.store import BlockStore
from gossamer.ops import DenseWindow, decode_attention
from gossamer.ops.kv_block import BLOCK_TOKENS

KV = tuple[Tensor, Tensor]
NARROWEST = 32  # head_dim of masked_attention


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


class PagedCache:
    """Pools [pages, layers, heads, bytes] of K and V: stored blocks, and dense ones of windows.

    All layers of a page are neighbours, so that one call compresses a block in all of them. Without
    dense pages (a plain cache) the stored ones are the dense ones.
    """

    def __init__(self, spec: CacheSpec, stored_pages: int, dense_pages: int) -> None:
        self.spec, self.rule, config = spec, spec.rule, spec.config
        self.k, self.v = self._pool(config.k, stored_pages), self._pool(config.v, stored_pages)
        self.aliased = dense_pages == 0
        self.dense_k, self.dense_v = self.k, self.v
        if not self.aliased:
            self.dense_k, self.dense_v = (self._pool(spec.dense, dense_pages) for _ in range(2))
        self._view()

    def _pool(self, side: Side, pages: int) -> BlockStore:
        # Zeros: values that nobody wrote are weighted by 0, and 0 times NaN would be NaN.
        shape = self.spec.shape
        size = (pages, shape.layers, shape.kv_heads, side.block_bytes(shape.head_dim))
        zeros = torch.zeros(size, dtype=torch.uint8, device=self.spec.device)
        return BlockStore(side, shape.head_dim, zeros)

    def _view(self) -> None:
        """Views of the layers, made once: a step asks for each of them."""
        layers, pools = range(self.spec.shape.layers), (self.k, self.v, self.dense_k, self.dense_v)
        self._layers = [tuple(pool.layer(layer) for pool in pools) for layer in layers]

    @property
    def pools(self) -> dict[str, Tensor]:
        """The memory itself, by name."""
        stored = {"k": self.k.blocks, "v": self.v.blocks}
        dense = {"dense_k": self.dense_k.blocks, "dense_v": self.dense_v.blocks}
        return stored if self.aliased else stored | dense

    def replace(self, **pools: Tensor) -> None:
        """Other memory for the pools of these names, of as many layers, heads and bytes."""
        for name, blocks in pools.items():
            setattr(self, name, replace(getattr(self, name), blocks=blocks))
        self._view()

    def grow(self, stored_pages: int) -> None:
        """Room for so many stored pages, one pool after the other."""
        for name in ("k", "v"):
            old = self.pools[name]
            if stored_pages > len(old):
                larger = old.new_zeros(stored_pages, *old.shape[1:])
                larger[: len(old)] = old
                self.replace(**{name: larger})

    @property
    def nbytes(self) -> int:
        return sum(pool.numel() for pool in self.pools.values())

    # ---- whole blocks -----------------------------------------------------------------------

    def compress(self, dense_slots: Tensor, stored_slots: Tensor) -> None:
        """Whole blocks from dense into stored pages, all layers at once; int64 [N] slots."""
        k, v = (
            pool.merged().read(dense_slots, self.spec.dtype)
            for pool in (self.dense_k, self.dense_v)
        )
        weights = self.spec.k_weights
        ranks = None if weights is None else weights.flatten(0, 1)
        self._store(self.k.merged(), self.v.merged(), k, v, stored_slots, ranks)

    def restore(self, dense_slots: Tensor, stored_slots: Tensor) -> None:
        """The way back: exact where the stored format is the model's own type."""
        for stored, dense in ((self.k, self.dense_k), (self.v, self.dense_v)):
            rows = stored.merged().read(stored_slots, self.spec.dtype)
            dense.merged().write(rows, dense_slots)

    def _store(
        self,
        k_store: BlockStore,
        v_store: BlockStore,
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        weights: Tensor | None,
    ) -> None:
        """Rows as their policies rank them; weights: of K."""
        config = self.spec.config
        k_store.write(k, slots, POLICIES[config.k.policy].rank(k, weights))
        v_store.write(v, slots, POLICIES[config.v.policy].rank(v, None))

    @torch.inference_mode()
    def randomise(self, generator: torch.Generator) -> None:
        """One block of normal random rows in all pages of each pool: for benchmarks."""
        slots = torch.arange(BLOCK_TOKENS, device=self.spec.device)
        shape = (BLOCK_TOKENS, self.spec.shape.layers * self.spec.shape.kv_heads)
        for name, pool in self.pools.items():
            size = (*shape, self.spec.shape.head_dim)
            x = torch.randn(size, generator=generator, device=self.spec.device).to(self.spec.dtype)
            store: BlockStore = getattr(self, name)
            store.merged().write(x, slots)
            pool[1:] = pool[:1]

    # ---- one layer of a forward pass --------------------------------------------------------

    def turn(self, layer: int, q: Tensor, k: Tensor) -> KV:
        """q [tokens, heads, D] and k [tokens, kv_heads, D] after RoPE, in the basis of K if any."""
        if self.spec.k_basis is None:
            return q, k
        q, k = turn_q_and_k(q.transpose(0, 1), k.transpose(0, 1), self.spec.k_basis[layer])
        return q.transpose(0, 1), k.transpose(0, 1)

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
            weights = None if self.spec.k_weights is None else self.spec.k_weights[layer]
            rows = (k[step.pack_tokens], v[step.pack_tokens])
            self._store(*self._layers[layer][:2], *rows, step.pack_slots, weights)
        if not step.chunks:
            assert step.decode is not None, "a step has tokens"
            self.write(layer, k, v, step.slots)
            return self._decode(layer, q, step.decode, scale, sliding)
        out, decodes = torch.zeros_like(q), 0
        if step.decode is not None:
            decodes = len(step.decode.seq_lens)
            self.write(layer, k[:decodes], v[:decodes], step.slots[:decodes])
            out[:decodes] = self._decode(layer, q[:decodes], step.decode, scale, sliding)
        for chunk in step.chunks:
            part = (x[chunk.tokens] for x in (q, k, v))
            out[chunk.tokens] = self._chunk(layer, *part, chunk, scale, sliding)
        # Last: a page may hold what a chunk still saw of the past.
        self.write(layer, k[decodes:], v[decodes:], step.slots[decodes:])
        return out

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Rows into dense pages."""
        *_, dense_k, dense_v = self._layers[layer]
        dense_k.write(k, slots)
        dense_v.write(v, slots)

    def _decode(
        self, layer: int, q: Tensor, batch: DecodeBatch, scale: float, sliding: int
    ) -> Tensor:
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

    def _chunk(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        chunk: Chunk,
        scale: float,
        sliding: int,
    ) -> Tensor:
        """Keys from before come out of their pages, then one masked attention over all."""
        keys = [self._read(layer, dense, slots) for dense, slots in chunk.past] + [(k, v)]
        k, v = (
            torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*keys, strict=True)
        )
        heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
        if q.shape[-1] < NARROWEST:  # of toy models: zeros change no score
            heads_first = [F.pad(x, (0, NARROWEST - x.shape[-1])) for x in heads_first]
        out = masked_attention(*heads_first, chunk.mask.sliding(sliding), scale=scale)
        return out[0].transpose(0, 1)[..., : q.shape[-1]]

    def _read(self, layer: int, dense: bool, slots: Tensor) -> KV:
        k, v = self._layers[layer][2:] if dense else self._layers[layer][:2]
        return k.read(slots, self.spec.dtype), v.read(slots, self.spec.dtype)


def slots_of(pages: Tensor) -> Tensor:
    """All slots of these pages, int64 [32 * pages], in order."""
    offsets = torch.arange(BLOCK_TOKENS, device=pages.device)
    return (pages.long()[:, None] * BLOCK_TOKENS + offsets).flatten()

"""One layer of a SparseCache: its pools of pages, and attention over them."""

import torch
from torch import Tensor

from gossamer.engine import prefill
from gossamer.integrations.transformers.kind import Kind
from gossamer.integrations.transformers.steps import (
    ChunkStep,
    Compression,
    DecodeStep,
    RowChunk,
)
from gossamer.ops import DenseWindow, decode_attention, kv_pack, kv_unpack
from gossamer.ops.kv_block import BlockFormat


class LayerPages:
    """Pools [pages, heads, bytes] of K and V: stored blocks, and the dense ones of each row.

    k_weights [heads, head_dim] rank the entries of K; None for none.
    """

    def __init__(self, kind: Kind, rows: int, k_weights: Tensor | None) -> None:
        self.kind, self.k_weights = kind, k_weights
        self.k, self.v = self._pool(1, kind.k_fmt), self._pool(1, kind.v_fmt)
        dense = rows * kind.dense_pages
        self.dense_k, self.dense_v = (self._pool(dense, kind.dense_fmt) for _ in range(2))

    def _pool(self, pages: int, fmt: BlockFormat) -> Tensor:
        # Zeros: values that nobody wrote are weighted by 0, and 0 times NaN would be NaN.
        size = (pages, self.kind.shape.kv_heads, fmt.nbytes)
        return torch.zeros(size, dtype=torch.uint8, device=self.kind.device)

    @property
    def nbytes(self) -> int:
        return sum(pool.numel() for pool in (self.k, self.v, self.dense_k, self.dense_v))

    def grow(self, pages: int) -> None:
        """Room for so many stored pages, one pool after the other."""
        if pages > len(self.k):
            self.k = self._grown(self.k, pages, self.kind.k_fmt)
            self.v = self._grown(self.v, pages, self.kind.v_fmt)

    def _grown(self, pool: Tensor, pages: int, fmt: BlockFormat) -> Tensor:
        larger = self._pool(pages, fmt)
        larger[: len(pool)] = pool
        return larger

    def select(self, rows: Tensor) -> None:
        """Dense pages of row i become those of rows[i]."""
        each = self.kind.dense_pages
        self.dense_k, self.dense_v = (
            pool.unflatten(0, (-1, each)).index_select(0, rows).flatten(0, 1)
            for pool in (self.dense_k, self.dense_v)
        )

    def keep_pages(self, pages: Tensor) -> None:
        """Stored page i becomes what pages[i] is; the others go."""
        self.k, self.v = self.k.index_select(0, pages), self.v.index_select(0, pages)

    def compress(self, move: Compression) -> None:
        """Dense blocks into stored ones."""
        kind = self.kind
        k, v = (
            kv_unpack(pool, move.sources, kind.dense_fmt, kind.dtype)
            for pool in (self.dense_k, self.dense_v)
        )
        self._store(k, v, move.targets)

    def restore(self, move: Compression) -> None:
        """The way back: exact where the stored format is the model's own type."""
        kind = self.kind
        for stored, dense, fmt in (
            (self.k, self.dense_k, kind.k_fmt),
            (self.v, self.dense_v, kind.v_fmt),
        ):
            rows = kv_unpack(stored, move.targets, fmt, kind.dtype)
            kv_pack(rows, dense, move.sources, kind.dense_fmt)

    def _store(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        kv_pack(k, self.k, slots, self.kind.k_fmt, weights=self.k_weights)
        kv_pack(v, self.v, slots, self.kind.v_fmt)

    def _write(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        kv_pack(k, self.dense_k, slots, self.kind.dense_fmt)
        kv_pack(v, self.dense_v, slots, self.kind.dense_fmt)

    def decode(
        self, q: Tensor, k: Tensor, v: Tensor, step: DecodeStep, scale: float, sliding: int
    ) -> Tensor:
        """q [rows, 1, heads, head_dim], k and v [rows, 1, kv_heads, head_dim]; like q."""
        kind = self.kind
        if step.compression is not None:
            self.compress(step.compression)
        self._write(k[:, 0], v[:, 0], step.slots)
        window = DenseWindow(
            *(self.dense_k, self.dense_v, step.dense_table),
            *(kind.config.window, kind.config.sink, kind.dense_fmt.values),
        )
        out, _ = decode_attention(
            *(q, self.k, self.v, step.stored_table, step.seq_lens, kind.k_fmt, kind.v_fmt),
            window=window,
            scale=scale,
            sliding=sliding,
        )
        return out

    def chunk(
        self, q: Tensor, k: Tensor, v: Tensor, step: ChunkStep, scale: float, sliding: int
    ) -> Tensor:
        """The same for [rows, columns, heads, head_dim]; zeros where there is padding."""
        if step.compression is not None:
            self.compress(step.compression)
        out = q.new_zeros(q.shape)
        for row in step.rows:
            part = (row.row, slice(row.first, None))
            near = self._near((k[part], v[part]), row)
            if row.packed.stop > row.packed.start:
                self._store(near[0][row.packed], near[1][row.packed], row.pack_slots)
            far = self._read(False, row.far_slots) if len(row.far_slots) else None
            out[part] = prefill.attend(row.pattern, q[part], far, near, scale, sliding)
            self._write(k[part], v[part], row.write)
        return out

    def _near(self, own: prefill.KV, row: RowChunk) -> prefill.KV:
        """The keys from before that the row sees dense, and its own."""
        parts = [*(self._read(dense, slots) for dense, slots in row.past), own]
        if len(parts) == 1:
            return own
        return torch.cat([k for k, _ in parts]), torch.cat([v for _, v in parts])

    def _read(self, dense: bool, slots: Tensor) -> prefill.KV:
        kind = self.kind
        pools = (self.dense_k, self.dense_v) if dense else (self.k, self.v)
        formats = (kind.dense_fmt, kind.dense_fmt) if dense else (kind.k_fmt, kind.v_fmt)
        k, v = (
            kv_unpack(pool, slots, fmt, kind.dtype)
            for pool, fmt in zip(pools, formats, strict=True)
        )
        return k, v

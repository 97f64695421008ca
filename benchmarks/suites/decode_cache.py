"""One cache that decode attention is measured on: how it is stored, lengths, pages, window."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kernels.arguments import DecodeArguments
from gossamer.ops import kv_pack
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

VALUES_OF = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Args(DecodeArguments):
    """The arguments of the op `decode_attention`, in order."""

    @property
    def formats(self) -> tuple[BlockFormat, BlockFormat]:
        """The formats of K and of V."""
        head_dim = self.q.shape[3]
        k = BlockFormat(head_dim, self.k_keep, self.k_values, self.k_scales)
        return k, BlockFormat(head_dim, self.v_keep, self.v_values, self.v_scales)


@dataclass(frozen=True)
class Stored:
    """How K or V is stored; values "same": in the dtype of the queries."""

    keep: int | None = None
    values: str = "same"
    scales: str | None = None

    def __str__(self) -> str:
        kind = "dense" if self.keep is None else f"keep={self.keep}"
        values = "" if self.values == "same" else f" {self.values}"
        return kind + values + ("" if self.scales is None else f"@{self.scales}")

    def format(self, head_dim: int, dtype: torch.dtype) -> BlockFormat:
        values = VALUES_OF[dtype] if self.values == "same" else self.values
        return BlockFormat(head_dim, self.keep, values, self.scales)


@dataclass(frozen=True)
class DecodeCase:
    """One step of `batch` sequences of `context` tokens each, or of `lengths` with that mean.

    v: None for the same as k. page_size: tokens. window: dense tokens before the query's block, 0
    for no window at all. backends: ours that are timed. note: further words for the record.
    """

    batch: int
    kv_heads: int
    context: int
    k: Stored = Stored()
    v: Stored | None = None
    heads: int = 32
    head_dim: int = 128
    dtype: torch.dtype = torch.float16
    lengths: tuple[int, ...] = ()
    page_size: int = BLOCK_TOKENS
    shuffled: bool = True
    window: int = 0
    graph: bool = False
    backends: tuple[str, ...] = ("cpu", "cuda")
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.batch, self.heads, self.kv_heads, self.context, self.head_dim

    @property
    def variant(self) -> str:
        stored = str(self.k) if self.v is None else f"K {self.k}, V {self.v}"
        window = f" window={self.window}" if self.window else ""
        note = f" {self.note}" if self.note else ""
        return stored + window + note + (" in a CUDA graph" if self.graph else "")

    @property
    def has_peers(self) -> bool:
        """Whether this is the plain dense cache that other libraries read as well."""
        return self == DecodeCase(
            *(self.batch, self.kv_heads, self.context),
            **{name: getattr(self, name) for name in ("heads", "head_dim", "dtype", "backends")},
        )

    @property
    def lens(self) -> tuple[int, ...]:
        return self.lengths or (self.context,) * self.batch

    @property
    def formats(self) -> tuple[BlockFormat, BlockFormat]:
        stored = self.k, self.v or self.k
        k, v = (s.format(self.head_dim, self.dtype) for s in stored)
        return k, v

    @property
    def dense_blocks(self) -> int:
        """Blocks of each sequence that are read from the window."""
        return self.window // BLOCK_TOKENS + 1 if self.window else 0

    @property
    def bytes(self) -> int:
        """Blocks of K and V that are read, the queries and the result."""
        per_block = sum(fmt.nbytes for fmt in self.formats)
        dense = 2 * BlockFormat(self.head_dim, None, VALUES_OF[self.dtype]).nbytes
        recent = self.batch * self.dense_blocks
        cache = (self._blocks - recent) * per_block + recent * dense
        return cache * self.kv_heads + self._ends

    @property
    def dense_bytes(self) -> int:
        """The same for a dense cache in the dtype of the queries."""
        dense = 2 * BlockFormat(self.head_dim, None, VALUES_OF[self.dtype]).nbytes
        return self._blocks * dense * self.kv_heads + self._ends

    @property
    def flops(self) -> int:
        """Two for each stored entry and query head."""
        entries = sum(self.head_dim if f.keep is None else f.keep for f in self.formats)
        return 2 * self.heads * sum(self.lens) * entries

    @property
    def _blocks(self) -> int:
        return sum(-(-n // BLOCK_TOKENS) for n in self.lens)

    @property
    def _ends(self) -> int:
        return 2 * self.batch * self.heads * self.head_dim * self.dtype.itemsize

    def args(self, device: str) -> Args:
        """Random queries and caches on `device`."""
        table = self._page_table(device)
        blocks = int(table.max() + 1) * self.page_size // BLOCK_TOKENS
        k_fmt, v_fmt = self.formats
        k_blocks, v_blocks = (self._pool(fmt, blocks, device) for fmt in (k_fmt, v_fmt))
        shape = (self.batch, 1, self.heads, self.head_dim)
        q = torch.randn(shape, dtype=self.dtype, device=device)
        lens = torch.tensor(self.lens, dtype=torch.int32, device=device)
        window = self._window(device)
        cache = (q, k_blocks, v_blocks, table, lens, window[0], window[1], window[2])
        k_options = (k_fmt.keep, k_fmt.values, str(k_fmt.scales))
        v_options = (v_fmt.keep, v_fmt.values, str(v_fmt.scales))
        dense = (VALUES_OF[self.dtype], self.window, 0)
        scale = 1 / math.sqrt(self.head_dim)
        return Args(*cache, *k_options, *v_options, *dense, self.page_size, scale, 0.0, 0)

    def _page_table(self, device: str) -> Tensor:
        """Pages of all sequences, each once; -1 beyond a sequence's end."""
        counts = [-(-n // self.page_size) for n in self.lens]
        total = sum(counts)
        pages = torch.randperm(total) if self.shuffled else torch.arange(total)
        table = torch.full((self.batch, max(counts)), -1, dtype=torch.int32)
        for line, own in zip(table, pages.int().split(counts), strict=True):
            line[: len(own)] = own
        return table.to(device)

    def _pool(self, fmt: BlockFormat, blocks: int, device: str) -> Tensor:
        pool = torch.zeros(blocks, self.kv_heads, fmt.nbytes, dtype=torch.uint8, device=device)
        slots = torch.arange(blocks * BLOCK_TOKENS, device=device)
        shape = (len(slots), self.kv_heads, self.head_dim)
        kv_pack(torch.randn(shape, dtype=self.dtype, device=device), pool, slots, fmt)
        return pool

    def _window(self, device: str) -> tuple[Tensor, Tensor, Tensor] | tuple[None, None, None]:
        """Dense blocks for the end of each sequence, and a table that names no others."""
        if not self.window:
            return None, None, None
        count = self.dense_blocks  # pages of one block
        fmt = BlockFormat(self.head_dim, None, VALUES_OF[self.dtype])
        k, v = (self._pool(fmt, self.batch * count, device) for _ in range(2))
        width = -(-max(self.lens) // BLOCK_TOKENS)
        table = torch.full((self.batch, width), -1, dtype=torch.int32)
        for i, length in enumerate(self.lens):
            end = -(-length // BLOCK_TOKENS)
            table[i, end - count : end] = torch.arange(i * count, (i + 1) * count)
        return k, v, table.to(device)

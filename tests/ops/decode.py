"""Caches to attend to: random rows in paged blocks, NaN wherever no query looks."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer.kv.config import KVConfig
from gossamer.ops import (
    BackendUnavailableError,
    BlockFormat,
    DenseWindow,
    decode_attention,
    kv_pack,
)
from tests.ops import kv
from tests.ops.spec import poison

NOWHERE = torch.tensor([-1, 2**31 - 1, -(2**31), 1 << 20], dtype=torch.int32)  # no such page
SPARSE = BlockFormat(64, 24)


@dataclass(frozen=True)
class Case:
    """A call in a few words. window None: all is compressed; pages None: as many as are used."""

    k: BlockFormat = SPARSE
    v: BlockFormat = SPARSE
    lens: tuple[int, ...] = (70, 0, 33)
    kv_heads: int = 2
    group: int = 2
    q_len: int = 1
    page_size: int = 32
    pages: int | None = None
    window: int | None = None
    sink: int = 0
    dense: str = "fp16"
    sliding: int = 0
    softcap: float = 0.0
    scale: float | None = None
    dtype: torch.dtype = torch.float16
    sizes: tuple[float, float] = (1.0, 1.0)  # of entries of K and of V

    def __str__(self) -> str:
        changed = [f for f in vars(self) if getattr(self, f) != getattr(Case, f)]
        return " ".join(f"{f}={_short(getattr(self, f))}" for f in changed)

    @property
    def sees(self) -> KVConfig:
        return KVConfig(window=self.window or 0, sink=self.sink)


def _short(value: object) -> str:
    if isinstance(value, BlockFormat):
        keep = "dense" if value.keep is None else value.keep
        return f"{value.head_dim}:{keep}:{value.values}@{value.scales}"
    return str(value).removeprefix("torch.").replace(" ", "")


@dataclass(frozen=True)
class Pool:
    """K and V blocks, their table, and the rows in them: float64 [slots, kv_heads, head_dim]."""

    k_blocks: Tensor
    v_blocks: Tensor
    table: Tensor
    k_rows: np.ndarray
    v_rows: np.ndarray

    def to(self, device: str) -> "Pool":
        moved = (t.to(device) for t in (self.k_blocks, self.v_blocks, self.table))
        return Pool(*moved, self.k_rows, self.v_rows)


@dataclass(frozen=True)
class Call:
    """The tensors of a call."""

    case: Case
    q: Tensor
    lens: Tensor
    main: Pool
    dense: Pool | None = None

    def to(self, device: str) -> "Call":
        dense = None if self.dense is None else self.dense.to(device)
        return Call(self.case, self.q.to(device), self.lens.to(device), self.main.to(device), dense)

    def tensors(self) -> list[Tensor]:
        pools = [self.main] if self.dense is None else [self.main, self.dense]
        return [self.q, self.lens, *(t for p in pools for t in (p.k_blocks, p.v_blocks, p.table))]

    def attend(self, backend: str | None = None) -> tuple[Tensor, Tensor]:
        """The op under test, into memory that was NaN; skips formats that `cuda` need not have."""
        c, window = self.case, None
        if self.dense is not None:
            d = self.dense
            window = DenseWindow(d.k_blocks, d.v_blocks, d.table, c.window or 0, c.sink, c.dense)
        poison([self.q.shape], self.q.dtype, self.q.device.type)
        poison([self.q.shape[:3]], torch.float32, self.q.device.type)
        try:
            return decode_attention(
                *(self.q, self.main.k_blocks, self.main.v_blocks, self.main.table, self.lens),
                *(c.k, c.v),
                window=window, page_size=c.page_size, scale=c.scale, softcap=c.softcap,
                sliding=c.sliding, backend=backend,
            )  # fmt: skip
        except BackendUnavailableError as error:
            if backend != "cuda" or tuned(c):
                raise
            pytest.skip(f"unsupported: {error}")


def tuned(case: Case) -> bool:
    """The formats that the CUDA backend must have; others may fall back to Triton."""
    k, v = case.k, case.v
    if case.dtype == torch.float32 or k.head_dim not in (64, 80, 96, 128, 256):
        return False
    own = {torch.float16: "fp16", torch.bfloat16: "bf16"}[case.dtype]
    if case.window is not None and case.dense != own:
        return False
    if k.profile is not None and v.profile is not None:
        return True
    if k.head_dim not in (64, 128):
        return False
    sparse = [fmt.keep is not None and (fmt.values == own or fmt.bits <= 8) for fmt in (k, v)]
    if k.keep is None and v.keep is None:
        return k.values == v.values == own
    return sparse[1] and (sparse[0] or (k.keep, k.values, k.scales) == (None, "int4", "channel"))


# ---- building -------------------------------------------------------------------------


def build(case: Case, device: str = "cpu") -> Call:
    """Random rows in pages in disorder; whatever no query sees is full of NaN and lost pages."""
    lens = torch.tensor(case.lens, dtype=torch.int32)
    heads = case.kv_heads * case.group
    q = torch.randn(len(case.lens), case.q_len, heads, case.k.head_dim).to(case.dtype)
    for s, length in enumerate(case.lens):
        q[s, : max(case.q_len - length, 0)] = torch.nan  # before the start of the sequence
    seen = [seen_blocks(case, length) for length in case.lens]
    main = _pool(case, (case.k, case.v), [compressed for compressed, _ in seen], spare=1)
    dense = None
    if case.window is not None:
        fmt = BlockFormat(case.k.head_dim, None, case.dense)
        dense = _pool(case, (fmt, fmt), [uncompressed for _, uncompressed in seen], spare=2)
    return Call(case, q, lens, main, dense).to(device)


def seen_blocks(case: Case, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that may be read compressed and dense, bool [length] each.

    A block is compressed when it leaves the window of the last query, and may only then be read
    there; its dense copy may be gone when it has left the window of the first.
    """
    first, last = max(length - case.q_len, 0), length - 1
    token = torch.arange(length)
    seen = token > first - case.sliding if case.sliding else token >= 0
    if case.window is None:
        return seen.numpy(), (seen & False).numpy()
    near_first = case.sees.sees_dense(torch.tensor(first), token)
    near_last = case.sees.sees_dense(torch.tensor(last), token)
    return (seen & ~near_last).numpy(), (seen & near_first).numpy()


def _pool(
    case: Case, formats: tuple[BlockFormat, BlockFormat], seen: list[np.ndarray], spare: int
) -> Pool:
    """Pages for these tokens of each sequence, `spare` more, and a table with as many unused."""
    size, count = case.page_size, [-(-n // case.page_size) for n in case.lens]
    table = NOWHERE[torch.randint(len(NOWHERE), (len(seen), max(count, default=0) + spare))]
    total = sum(count)
    pages = total if case.pages is None else case.pages
    order = torch.randperm(pages)[:total] if pages >= total else torch.randint(pages, (total,))
    used = np.zeros((pages + spare) * size, dtype=bool)
    at = 0
    for s, tokens in enumerate(seen):
        for p in range(count[s]):
            here = tokens[p * size : (p + 1) * size]
            if here.any():
                table[s, p] = order[at]
                start = int(order[at]) * size
                used[start : start + len(here)] |= here
            at += 1
    sides = []
    for i, fmt in enumerate(formats):  # V has a page more, which does not count
        slots = np.append(used, np.zeros(i * size, dtype=bool))
        sides.append(_blocks(fmt, case.kv_heads, slots, case.sizes[i]))
    (k, k_rows), (v, v_rows) = sides
    return Pool(k, v, table, k_rows, v_rows)


def _blocks(
    fmt: BlockFormat, kv_heads: int, used: np.ndarray, size: float
) -> tuple[Tensor, np.ndarray]:
    """Blocks and what is in them, NaN in slots that are not used."""
    x = torch.randn(used.size, kv_heads, fmt.head_dim) * size
    blocks = torch.zeros(used.size // 32, kv_heads, fmt.nbytes, dtype=torch.uint8)
    slots = torch.arange(used.size)
    kv_pack(x, blocks, slots, fmt)
    rows = kv.read(blocks, kv.Call(fmt, x, slots, blocks.shape[0]))
    rows[~used] = np.nan
    spoil(blocks, fmt, ~used)
    return blocks, rows


def spoil(blocks: Tensor, fmt: BlockFormat, slots: np.ndarray, fill: int = 0xFF) -> None:
    """Fill all bytes of these slots, bool [slots], with ones: NaN as a float or a scale."""
    by_block = slots.reshape(-1, 32)
    block, token = by_block.nonzero()
    data = blocks.numpy().swapaxes(1, 2)  # [blocks, bytes, heads]
    data[block[:, None], kv.token_bytes(fmt)[token]] = fill
    blocks.numpy()[by_block.all(1)] = fill

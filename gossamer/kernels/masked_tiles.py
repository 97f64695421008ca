"""A tile of masked attention in Triton: keys of it into the running sums of some queries."""

import triton
import triton.language as tl

from gossamer.kernels.masked_step import LOG2E, bend, weigh


@triton.jit
def load_rows(
    at, token, first, end,
    CUT: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    FLOAT32: tl.constexpr,
):  # fmt: skip
    """Rows `first` onwards, WIDTH channels of which D exist; CUT: only those before `end` do."""
    row = tl.arange(0, ROWS)
    channel = tl.arange(0, WIDTH)
    ptr = (at + first.to(tl.int64) * token + row * token)[:, None] + channel[None, :]
    ptr = tl.multiple_of(ptr, (1, 16))  # bytes, of the first channel
    if CUT:
        x = tl.load(ptr, mask=(first + row < end)[:, None] & (channel < D)[None, :], other=0.0)
    elif D < WIDTH:
        x = tl.load(ptr, mask=(channel < D)[None, :], other=0.0)
    else:
        x = tl.load(ptr)
    return x.to(tl.float32) if FLOAT32 else x


@triton.jit
def see(words_ptr, part, ROWS: tl.constexpr, TILE_K: tl.constexpr, KEYS: tl.constexpr):
    """Whether queries see keys part * KEYS onwards of a tile, by the words of the first query."""
    line = tl.arange(0, ROWS) * (TILE_K // 32)
    key = tl.arange(0, KEYS)
    if KEYS < 32:
        first = part * KEYS
        words = tl.load(words_ptr + line + first // 32)[:, None] >> (first % 32)
    else:
        first = part * (KEYS // 32)
        words = tl.load(words_ptr + line + first)[:, None]
        for i in tl.static_range(1, KEYS // 32):
            more = tl.load(words_ptr + line + first + i)[:, None]
            words = tl.where((key // 32 == i)[None, :], more, words)
    return ((words >> (key % 32)[None, :]) & 1) != 0


@triton.jit
def count_full(kinds_ptr, begin, end):
    """How many tiles of a row are full; they come first."""
    lane = tl.arange(0, 128)
    count = tl.zeros((), tl.int32)
    for first in range(begin, end, 128):
        kind = tl.load(kinds_ptr + first + lane, mask=first + lane < end, other=0)
        count += tl.sum((kind < 0).to(tl.int32), axis=0)
    return count


@triton.jit
def attend(
    q, sums, largest, total, k_at, v_at, k_token, v_token, bias_at, bias_key, words_ptr,
    first, inside, kv_len, scale, softcap,
    PARTIAL: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr,
    ROWS: tl.constexpr, TILE_K: tl.constexpr,
    CAPPED: tl.constexpr, BIASED: tl.constexpr, FLOAT32: tl.constexpr, BENT: tl.constexpr,
):  # fmt: skip
    """Keys `first` onwards, those of them that the tile's words show where it is PARTIAL."""
    k = load_rows(k_at, k_token, first, kv_len, PARTIAL, KEYS, D, WIDTH, FLOAT32)
    # tf32x3 (of float32 alone) is off by 2^-22; "ieee" spills, for want of a tensor core.
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
    factor = scale * LOG2E
    if BENT:
        key = first + tl.arange(0, KEYS)
        ptr = bias_at[:, None] + (key.to(tl.int64) * bias_key)[None, :]
        there = inside[:, None] & (key < kv_len)[None, :]
        scores = bend(scores, ptr, there, scale, softcap, CAPPED, BIASED)
        factor = 1.0
    if PARTIAL:
        seen = see(words_ptr, first % TILE_K // KEYS, ROWS, TILE_K, KEYS)
        scores = tl.where(seen, scores, -float("inf"))
    weights, largest, total, shrink = weigh(scores, largest, total, factor)
    v = load_rows(v_at, v_token, first, kv_len, PARTIAL, KEYS, D, WIDTH, FLOAT32)
    sums = tl.dot(weights.to(v.dtype), v, sums * shrink[:, None], input_precision="tf32x3")
    return sums, largest, total

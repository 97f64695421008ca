"""A share of decode attention: the first of its two Triton kernels.

A program takes query rows of one KV head and walks its share of the blocks that the sequence really
has: lengths are read here alone, so that a CUDA graph can be replayed with others.
"""

import triton
import triton.language as tl

from gossamer.kernels.decode_blocks import padded
from gossamer.kernels.decode_step import attend, find_block

# Whether one of these is 1 or a multiple of 16 makes no program worth compiling.
SIZES = (
    *("q_seq", "q_token", "q_head", "k_block", "k_head", "v_block", "v_head", "table_seq"),
    *("dense_k_block", "dense_k_head", "dense_v_block", "dense_v_head", "dense_table_seq"),
    *("blocks", "dense_blocks", "kv_heads", "group", "q_len", "splits", "tiles", "per_page"),
    *("capacity", "window", "sink", "sliding"),
)


@triton.jit
def schedule(length, q_len, split, splits, window, sink, sliding, WINDOW: tl.constexpr):
    """Which blocks a share walks: items `begin` to `stop` of `dense` ones and then compressed ones.

    Dense items are the `sinks` from block `first` on and then the blocks from `recent` on, the
    compressed ones are those from `start` on. A block is in both when some queries see it dense.
    """
    first_q = tl.maximum(length - q_len, 0)
    first = tl.maximum(first_q - sliding + 1, 0) // 32
    end = (length + 31) // 32
    if WINDOW != "":
        start = tl.maximum(first, sink)
        sinks = tl.maximum(tl.minimum(sink, end) - first, 0)
        recent = tl.maximum(start, first_q // 32 - window)
        dense = sinks + tl.maximum(end - recent, 0)
        items = dense + tl.maximum(end - 1 - window - start, 0)
    else:
        start = first
        sinks = 0
        recent = first
        dense = 0
        items = end - first
    share = (items + splits - 1) // splits
    begin = split * share
    return first, sinks, recent, start, dense, begin, tl.minimum(begin + share, items)


@triton.jit
def load_queries(
    q_ptr, q_seq, q_token, q_head, seq, head, row, group, q_len,
    D: tl.constexpr, FLOAT32: tl.constexpr,
):  # fmt: skip
    """Rows of q, a KV head's group of heads for each query, padded with zeros."""
    channel = tl.arange(0, padded(D))
    at = (row // group).to(tl.int64) * q_token + (head * group + row % group) * q_head
    inside = (row < q_len * group)[:, None] & (channel < D)[None, :]
    q = tl.load((q_ptr + seq * q_seq + at)[:, None] + channel[None, :], mask=inside, other=0.0)
    return q.to(tl.float32) if FLOAT32 else q


@triton.jit(do_not_specialize=SIZES)
def decode_attention_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lens_ptr, dense_k_ptr, dense_v_ptr, dense_table_ptr,
    k_words_ptr, v_words_ptr, stats_ptr, sums_ptr,
    q_seq, q_token, q_head, k_block, k_head, v_block, v_head, table_seq,
    dense_k_block, dense_k_head, dense_v_block, dense_v_head, dense_table_seq,
    blocks, dense_blocks, kv_heads, group, q_len, splits, tiles, per_page, capacity,
    window, sink, sliding, scale, softcap,
    D: tl.constexpr, ROWS: tl.constexpr, K_STORED: tl.constexpr, K_VALUES: tl.constexpr,
    K_SCALES: tl.constexpr, V_STORED: tl.constexpr, V_VALUES: tl.constexpr,
    V_SCALES: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, FLOAT32: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """A share of ROWS rows of one KV head of one sequence; results as decode_merge has them.

    Strides of pools are in units of 16 bytes, window and sink in blocks. WINDOW: the type of the
    window's values, "" without one. FLOAT32: multiply in float32, whatever q is. TOKENS: of a step.
    Words and VALUES of dense codes are those of decode_codes.
    """
    program = tl.program_id(0)
    split = program % splits
    row = program // splits % tiles * ROWS + tl.arange(0, ROWS)
    head = (program // splits // tiles % kv_heads).to(tl.int64)
    seq = (program // splits // tiles // kv_heads).to(tl.int64)
    q = load_queries(q_ptr, q_seq, q_token, q_head, seq, head, row, group, q_len, D, FLOAT32)
    length = tl.load(lens_ptr + seq)
    fine = (length >= 0) & (length <= capacity)
    length = tl.where(fine, length, 0)
    inside = row < q_len * group
    position = tl.where(inside, length - q_len + row // group, -1)
    first_q = tl.maximum(length - q_len, 0)
    last_q = length - 1
    largest = tl.where(fine, tl.full((ROWS,), -float("inf"), tl.float32), 0.0)
    total = tl.where(fine, tl.zeros((ROWS,), tl.float32), float("nan"))
    sums = tl.zeros((ROWS, padded(D)), tl.float32)
    first, sinks, recent, start, dense, begin, stop = schedule(
        length, q_len, split, splits, window, sink, sliding, WINDOW
    )
    STEPS: tl.constexpr = 32 // TOKENS  # of a block
    lane = tl.arange(0, TOKENS)
    if WINDOW != "":
        table = dense_table_ptr + seq * dense_table_seq
        k_base = dense_k_ptr + head * dense_k_head * 16
        v_base = dense_v_ptr + head * dense_v_head * 16
        for step in tl.range(begin * STEPS, tl.minimum(stop, dense) * STEPS, num_stages=1):
            item = step // STEPS
            c = tl.where(item < sinks, first + item, recent + item - sinks)
            k, v, ok = find_block(
                table, c, per_page, dense_blocks, k_base, v_base, dense_k_block, dense_v_block
            )
            high = tl.where(c < sink, last_q, tl.minimum(last_q, (c + window) * 32 + 31))
            largest, total, sums = attend(
                q, largest, total, sums, position, c, step % STEPS * TOKENS + lane, first_q, high,
                sliding, scale, softcap, k, v, k_words_ptr, v_words_ptr, ok,
                D, 0, WINDOW, "none", 0, WINDOW, "none", CAPPED,
            )  # fmt: skip
    table = table_ptr + seq * table_seq
    k_base = k_ptr + head * k_head * 16
    v_base = v_ptr + head * v_head * 16
    for step in tl.range(tl.maximum(begin, dense) * STEPS, stop * STEPS, num_stages=1):
        c = start + step // STEPS - dense
        k, v, ok = find_block(table, c, per_page, blocks, k_base, v_base, k_block, v_block)
        low = tl.maximum(first_q, (c + window + 1) * 32) if WINDOW != "" else first_q
        largest, total, sums = attend(
            q, largest, total, sums, position, c, step % STEPS * TOKENS + lane, low, last_q,
            sliding, scale, softcap, k, v, k_words_ptr, v_words_ptr, ok,
            D, K_STORED, K_VALUES, K_SCALES, V_STORED, V_VALUES, V_SCALES, CAPPED,
        )  # fmt: skip
    rows = q_len * group
    part = ((seq * kv_heads + head) * splits + split) * rows
    tl.store(stats_ptr + (part + row) * 2, largest, mask=inside)
    tl.store(stats_ptr + (part + row) * 2 + 1, total, mask=inside)
    channel = tl.arange(0, padded(D))
    at = (tl.multiple_of(sums_ptr + part * D, 16) + row * D)[:, None] + channel[None, :]
    tl.store(at, sums, mask=inside[:, None] & (channel < D)[None, :])

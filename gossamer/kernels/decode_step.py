"""One step of decode attention in Triton: tokens of a block into the running sums of some rows."""

import triton
import triton.language as tl

from gossamer.kernels.decode_blocks import load_row_scales, load_rows

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tanh(x):
    """By a series near 0, where the quotient has lost its digits; infinities give -1 and 1."""
    y = x * x
    series = y * (y * (y * (y * 0.0218694885 - 0.0539682540) + 0.1333333333) - 0.3333333333)
    return tl.where(tl.abs(x) < 0.3, x + x * series, 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x)))


@triton.jit
def convert(x, dtype: tl.constexpr):
    """Between 16-bit types by way of float32."""
    return x if x.dtype == dtype else x.to(tl.float32).to(dtype)


@triton.jit
def find_block(table, c, per_page, blocks, k_ptr, v_ptr, k_block, v_block):
    """Pointers to block c of a sequence in the pools of K and V, and whether it is there.

    k_ptr, v_ptr: to block 0. k_block, v_block: strides in units of 16 bytes.
    """
    page = tl.load(table + c // per_page).to(tl.int64)
    block = page * per_page + c % per_page
    ok = (page >= 0) & (block < blocks)
    block = tl.where(ok, block, 0)
    k_ptr = tl.multiple_of(k_ptr + block * k_block * 16, 16)
    return k_ptr, tl.multiple_of(v_ptr + block * v_block * 16, 16), ok


@triton.jit
def attend(
    q, largest, total, sums, position, c, lane, low, high, sliding, scale, softcap,
    k_ptr, v_ptr, k_words, v_words, ok,
    D: tl.constexpr, K_STORED: tl.constexpr, K_VALUES: tl.constexpr, K_SCALES: tl.constexpr,
    V_STORED: tl.constexpr, V_VALUES: tl.constexpr, V_SCALES: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Tokens `lane` of block c, which positions low to high see, for the rows at `position`.

    largest: the largest score so far, times log2 e; total: the sum of exp(score - largest); sums:
    the same times V. A block that is not there (not ok) is NaN throughout.
    """
    token = c * 32 + lane
    at = position[:, None]
    seen = (at >= low) & (at <= high) & (token[None, :] <= at) & (token[None, :] > at - sliding)
    k = convert(
        load_rows(k_ptr, lane, k_words, ok, D, K_STORED, K_VALUES, K_SCALES, False), q.dtype
    )
    # tf32x3 (of float32 alone) is off by 2^-22; "ieee" spills, for want of a tensor core.
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale
    if K_SCALES == "row":  # here and not on K, whose codes are exact in every type
        scores *= load_row_scales(k_ptr, lane, ok, D, K_STORED, K_VALUES)[None, :]
    if CAPPED:
        scores = softcap * tanh(scores / softcap)
    scores = tl.where(seen, tl.where(ok, scores * LOG2E, float("nan")), -float("inf"))

    before = largest
    largest = tl.maximum(before, tl.max(scores, axis=1))
    origin = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)
    weights = tl.exp2(scores - origin[:, None])
    shrink = tl.exp2(before - origin)
    total = total * shrink + tl.sum(weights, axis=1)

    v = convert(load_rows(v_ptr, lane, v_words, ok, D, V_STORED, V_VALUES, V_SCALES, True), q.dtype)
    v = tl.where(ok, v, float("nan"))
    # What no query sees may be anything, also NaN: weight 0 alone would not keep it out.
    used = (low <= high) & (token <= high) & (token > low - sliding)
    v = tl.where(used[:, None], v, 0.0).to(q.dtype)
    sums = tl.dot(weights.to(q.dtype), v, sums * shrink[:, None], input_precision="tf32x3")
    return largest, total, sums

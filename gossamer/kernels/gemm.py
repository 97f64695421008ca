"""What the Triton kernels of GEMMs share: tiles, their order, activations."""

import triton
import triton.language as tl


def whole(*sizes: int) -> bool:
    """Whether sizes and strides are multiples of 16, which Triton then knows.

    Loads are wide there, and larger tiles fit in registers that would spill otherwise.
    """
    return all(size % 16 == 0 for size in sizes)


SQRT_HALF = tl.constexpr(0.7071067811865476)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """The activation of float32 x; names as in gossamer.ops.activations."""
    if ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))
    elif ACTIVATION == "gelu_tanh":
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "silu" or ACTIVATION == "swish":  # noqa: PLR1714 - Triton has no sets
        x = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "mish":  # tanh(ln(1 + e)) = n / (n + 2), n = e (e + 2); 1 from x = 20 on
        e = tl.exp(tl.minimum(x, 20.0))
        x = x * (e * (e + 2.0) / (e * (e + 2.0) + 2.0))
    elif ACTIVATION == "relu2":
        x = tl.where(x < 0.0, 0.0, x)  # NaN stays
        x = x * x
    elif ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
    return x


@triton.jit
def tile_place(m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of this program's tile; GROUP rows of tiles at a time, for the L2's sake."""
    columns = tl.cdiv(n, BN)
    group = tl.program_id(0) // (GROUP * columns)
    height = min(tl.cdiv(m, BM) - group * GROUP, GROUP)
    place = tl.program_id(0) % (GROUP * columns)
    return group * GROUP + place % height, place // height


@triton.jit
def tile_of(pointer, rows, limit, stride, start, width, BK: tl.constexpr):
    """[rows, BK] elements from column `start` on, zeros beyond the edges."""
    columns = start + tl.arange(0, BK)
    inside = (rows[:, None] < limit) & (columns[None, :] < width)
    at = rows[:, None].to(tl.int64) * stride + columns[None, :]
    return tl.load(pointer + at, mask=inside, other=0.0)


@triton.jit
def gemm_tile(
    a_ptr, b_ptr, m, n, k, a_stride, b_stride, rows, columns,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Float32 [BM, BN]: these rows of a [m, k] times these rows of b [n, k]."""
    sums = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        a = tile_of(a_ptr, rows, m, a_stride, start, k, BK)
        b = tile_of(b_ptr, columns, n, b_stride, start, k, BK)
        sums = tl.dot(a, b.T, sums, input_precision="ieee")
    return sums


@triton.jit
def store_tile(c_ptr, values, rows, columns, m, n):
    """To the contiguous [m, n] at c_ptr, rounded to its type."""
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    at = rows[:, None].to(tl.int64) * n + columns[None, :]
    tl.store(c_ptr + at, values.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_columns(values, bias_ptr, columns, n, HAS_BIAS: tl.constexpr):
    """values + bias, where there is one."""
    if HAS_BIAS:
        values += tl.load(bias_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    return values

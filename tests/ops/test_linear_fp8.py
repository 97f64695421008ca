"""What linear_fp8 means."""

import pytest
import torch

from gossamer.ops import linear_fp8, quantize_fp8
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.linear_fp8 import expand_scale
from tests.ops.spec import runs

RUNS = runs("linear_fp8")
FP8 = torch.float8_e4m3fn


def _args(
    x=(3, 8), x_scale=(3, 1), weight=(5, 8), weight_scale=(5, 1), bias=None, dtype=torch.float32
):
    codes = (torch.zeros(a).to(FP8) if isinstance(a, tuple) else a for a in (x, weight))
    scales = (torch.ones(a) if isinstance(a, tuple) else a for a in (x_scale, weight_scale))
    return next(codes), next(scales), next(codes), next(scales), bias, dtype


BAD_CALLS = [
    (_args(x=None), TypeError, "linear_fp8: x is NoneType; must be a torch.Tensor"),
    (
        _args(x=torch.zeros(3, 8)),
        TypeError,
        "linear_fp8: x has dtype float32; must be float8_e4m3fn",
    ),
    (
        _args(weight=(5, 7)),
        ValueError,
        "linear_fp8: weight has shape [5, 7]; must be [n, 8], k as in x",
    ),
    (
        _args(x_scale=(8,)),
        ValueError,
        "linear_fp8: x_scale has shape [8]; must be [1] (one) or [3, 1] (one for each row) or "
        "[3, 1] (one for each 128 of k)",
    ),
    (
        _args(weight_scale=(2, 1)),
        ValueError,
        "linear_fp8: weight_scale has shape [2, 1]; must be [1] (one) or [5, 1] (one for each row) "
        "or [1, 1] (one for each block)",
    ),
    (
        _args(weight_scale=torch.ones(5, 1).half()),
        TypeError,
        "linear_fp8: weight_scale has dtype float16; must be float32",
    ),
    (
        _args(bias=torch.zeros(8)),
        ValueError,
        "linear_fp8: bias has shape [8]; must be [5], one for each row of weight",
    ),
    (
        _args(dtype=torch.int8),
        TypeError,
        "linear_fp8: dtype is int8; must be one of float32, float16, bfloat16",
    ),
]


@pytest.mark.parametrize("of_weight", ["tensor", "row", "block"])
@pytest.mark.parametrize("of_x", ["tensor", "row", "group"])
def test_is_close_to_the_product_of_what_was_quantized(of_x, of_weight):
    x, weight, bias = torch.randn(4, 7, 300), torch.randn(140, 300), torch.randn(140)
    args = (*quantize_fp8(x, of_x), *quantize_fp8(weight, of_weight))
    want = torch.nn.functional.linear(x, weight, bias)
    got = linear_fp8(*args, bias, torch.float32)
    assert (got - want).norm() <= 0.06 * want.norm()


def lost_bits(k, scales):
    """What Hopper's tensor cores may lose of a sum, as a part of the sum of |terms|.

    They add products of float8 to sums of about 14 bits, and cut off what is below (DeepSeek-V3,
    arXiv 2412.19437, section 3.3.2). Measured on an H200 against float64, the worst of 1.5 million
    sums of products of normal numbers: 2^-13.0 at k = 32, 2^-11.8 at 128, 2^-11.3 at 1024, 2^-10.7
    at 4096 and 2^-10.6 at 16,384, by cuBLAS (use_fast_accum) as by our kernel. Where groups have
    scales, each 128 are added up in float32: no more than at 128.
    """
    return 2**-11 if k <= 1024 or scales == ("group", "block") else 2**-10


def check(shape, device, backend, dtype, scales, bias, lost=2**-20, one_sign=False):
    """lost: of the terms of a sum, by the arithmetic that adds them up."""
    m, n, k = shape
    x, weight = (torch.randn(s, device=device) for s in ((m, k), (n, k)))
    x, weight = (t.abs().to(FP8) if one_sign else t.to(FP8) for t in (x, weight))
    groups = -(-k // 128)
    shapes = {"tensor": (1,), "row": (m, 1), "group": (m, groups)}
    x_scale = torch.rand(shapes[scales[0]], device=device) + 0.5
    shapes = {"tensor": (1,), "row": (n, 1), "block": (-(-n // 128), groups)}
    weight_scale = torch.rand(shapes[scales[1]], device=device) + 0.5
    shift = torch.randn(n, device=device).to(dtype) if bias else None
    got = linear_fp8(x, x_scale, weight, weight_scale, shift, dtype, backend=backend)
    a = x.double() * expand_scale(x_scale, x)
    b = weight.double() * expand_scale(weight_scale, weight)
    want, terms = a @ b.T, a.abs() @ b.abs().T
    want = want if shift is None else want + shift.double()
    assert got.dtype is dtype
    assert got.is_contiguous()
    allowed = 0.51 * torch.finfo(dtype).eps * want.abs() + lost * (terms + 3)
    assert ((got.double() - want).abs() <= allowed).all()


PAIRS = [(a, b) for a in ("tensor", "row", "group") for b in ("tensor", "row", "block")]


@pytest.mark.parametrize("scales", PAIRS, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device, scales):
    interpreted = backend == "triton" and device == "cpu"
    for dtype in FLOAT_DTYPES[:1] if interpreted else FLOAT_DTYPES:
        for shape in ((1, 1, 1), (5, 140, 33), (70, 16, 272), (8, 128, 256)):
            lost = 2**-20 if device == "cpu" else lost_bits(shape[2], scales)
            check(shape, device, backend, dtype, scales, shape[0] == 5, lost)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "scales", [("tensor", "tensor"), ("row", "row"), ("group", "block")], ids=str
)
@pytest.mark.parametrize(
    "shape", [(192, 6144, 16), (300, 3080, 272), (1000, 3000, 1024), (4000, 3000, 17_008)], ids=str
)
def test_tiles_of_the_cuda_kernel(dtype, shape, scales):
    """Two shapes have tiles of 128 x 128, one of 128 x 192, one halves of 256 x 192."""
    check(shape, "cuda", "cuda", dtype, scales, False, lost_bits(shape[2], scales))
    check(shape, "cuda", "cuda", dtype, scales, True, lost_bits(shape[2], scales))


@pytest.mark.gpu
def test_scales_of_groups_keep_long_sums_of_one_sign():
    """Cut off at every step, such sums lose 2^-9.2 at k = 128, and in one piece 2^-3.7 at 4096."""
    check((300, 3080, 4096), "cuda", "cuda", torch.float16, ("group", "block"), True, 2**-9, True)

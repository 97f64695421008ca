"""What linear_int8 means."""

import pytest
import torch

from gossamer.ops import OPS, linear_int8, quantize_int8
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import runs

RUNS = runs("linear_int8")


def _codes(*shape, device="cpu"):
    return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)


def _args(
    x=(3, 8), x_scale=(3, 1), weight=(5, 8), weight_scale=(5, 1), bias=None, dtype=torch.float32
):
    x, weight = (
        torch.zeros(a, dtype=torch.int8) if isinstance(a, tuple) else a for a in (x, weight)
    )
    scales = (torch.ones(a) if isinstance(a, tuple) else a for a in (x_scale, weight_scale))
    return x, next(scales), weight, next(scales), bias, dtype


BAD_CALLS = [
    (_args(x=None), TypeError, "linear_int8: x is NoneType; must be a torch.Tensor"),
    (_args(x=torch.zeros(3, 8)), TypeError, "linear_int8: x has dtype float32; must be int8"),
    (
        _args(weight=torch.zeros(5, 8)),
        TypeError,
        "linear_int8: weight has dtype float32; must be int8",
    ),
    (
        _args(weight=torch.zeros(5, 8, dtype=torch.int8, device="meta")),
        ValueError,
        "linear_int8: weight is on meta; must be on cpu, the device of x",
    ),
    (
        _args(weight=(5, 7)),
        ValueError,
        "linear_int8: weight has shape [5, 7]; must be [n, 8], k as in x",
    ),
    (
        _args(x_scale=(3,)),
        ValueError,
        "linear_int8: x_scale has shape [3]; must be [3, 1] (one for each row)",
    ),
    (
        _args(weight_scale=(1, 5)),
        ValueError,
        "linear_int8: weight_scale has shape [1, 5]; must be [5, 1] (one for each row of weight)",
    ),
    (
        _args(x_scale=torch.ones(3, 1).half()),
        TypeError,
        "linear_int8: x_scale has dtype float16; must be float32",
    ),
    (
        _args(bias=torch.zeros(5).half()),
        TypeError,
        "linear_int8: bias has dtype float16; must be float32",
    ),
    (
        _args(bias=torch.zeros(8)),
        ValueError,
        "linear_int8: bias has shape [8]; must be [5], one for each row of weight",
    ),
    (
        _args(dtype=torch.float64),
        TypeError,
        "linear_int8: dtype is float64; must be one of float32, float16, bfloat16",
    ),
]


def test_is_close_to_the_product_of_what_was_quantized():
    x, weight, bias = torch.randn(4, 7, 300), torch.randn(40, 300), torch.randn(40)
    args = (*quantize_int8(x), *quantize_int8(weight))
    want = torch.nn.functional.linear(x, weight, bias)
    got = linear_int8(*args, bias, torch.float32)
    assert (got - want).norm() <= 0.015 * want.norm()


def check(shape, device, backend, dtype, bias):
    """Sums are exact; scales and bias are in float32 and rounded once."""
    m, n, k = shape
    x, weight = _codes(m, k, device=device), _codes(n, k, device=device)
    scales = torch.rand(m, 1, device=device) + 0.5, torch.rand(n, 1, device=device) / k
    shift = torch.randn(n, device=device).to(dtype) if bias else None
    got = linear_int8(x, scales[0], weight, scales[1], shift, dtype, backend=backend)
    want = (x.double() @ weight.double().T) * scales[0].double() * scales[1].double().T
    want = want if shift is None else want + shift.double()
    assert got.dtype is dtype
    assert got.is_contiguous()
    allowed = 0.51 * torch.finfo(dtype).eps * want.abs() + 2**-20 * (want.abs() + 3)
    assert ((got.double() - want).abs() <= allowed).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device):
    interpreted = backend == "triton" and device == "cpu"
    for dtype in FLOAT_DTYPES[:2] if interpreted else FLOAT_DTYPES:
        for shape in ((1, 1, 1), (5, 40, 33), (20, 7, 300), (70, 24, 16)):
            check(shape, device, backend, dtype, bias=shape[0] == 5)
    x, scale = _codes(0, 8, device=device), torch.ones(0, 1, device=device)
    weight, weight_scale = _codes(4, 8, device=device), torch.ones(4, 1, device=device)
    assert OPS[op](x, scale, weight, weight_scale, None, torch.float16, backend=backend).shape == (
        0,
        4,
    )


def _sums(x, weight):
    """What the kernel for CPUs adds up, without scales."""
    scales = (torch.ones(len(codes), 1) for codes in (x, weight))
    return linear_int8(x, next(scales), weight, next(scales), None, torch.float32, backend="cpu")


def test_rows_columns_and_lengths_of_the_cpu_kernel():
    """Blocks of 1 to 4 rows and of some columns, vectors of 8 to 64 codes, and what is left."""
    for rows in range(1, 21):
        for k in range(1, 71) if rows <= 4 else (3, 64, 70):
            x, weight = _codes(rows, k), _codes(1 + (7 * rows + k) % 33, k)
            want = (x.double() @ weight.double().T).float()
            assert torch.equal(_sums(x, weight), want), (rows, k)


@pytest.mark.parametrize("codes", [(-128, -128), (-128, 127), (127, -128), (127, 127)], ids=str)
def test_extreme_codes_do_not_saturate(codes):
    """The largest k at which int32 holds 128 * 128 * k."""
    x, weight = (torch.full((2, 131_071), code, dtype=torch.int8) for code in codes)
    assert torch.equal(_sums(x, weight), torch.full((2, 2), float(codes[0] * codes[1] * 131_071)))


def test_codes_and_scales_may_lie_anywhere():
    x, weight = _codes(6, 2, 100), _codes(40, 100)
    scales, bias = (torch.rand(6, 2, 1), torch.rand(40, 1)), torch.randn(40)
    want = linear_int8(x, scales[0], weight, scales[1], bias, torch.float32, backend="reference")
    apart = torch.full((40, 131), 99, dtype=torch.int8)
    apart[:, 3:103] = weight
    for moved in (x, x.transpose(0, 1).contiguous().transpose(0, 1), x.mT.contiguous().mT):
        args = (
            moved,
            scales[0].repeat(1, 1, 3)[..., 1:2],
            apart[:, 3:103],
            scales[1].repeat(1, 2)[:, :1],
            bias.repeat_interleave(2)[::2],
        )
        got = linear_int8(*args, torch.float32, backend="cpu")
        torch.testing.assert_close(got, want)
    one = x[:1, :1].expand(6, 2, 100)
    assert torch.equal(_sums(one.flatten(0, 1), weight), _sums(x[0, :1], weight).expand(12, 40))


def test_threads_agree_with_one():
    x, weight = _codes(300, 1030), _codes(500, 1030)  # rows in two panels
    many = _sums(x, weight)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert torch.equal(_sums(x, weight), many)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(many, (x.double() @ weight.double().T).float())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(192, 6144, 16), (300, 3080, 272), (1000, 3000, 1008), (4000, 3000, 17_008)], ids=str
)
def test_tiles_of_the_cuda_kernel(dtype, shape):
    """Two shapes have tiles of 128 x 128, one of 128 x 192, one halves of 256 x 192."""
    check(shape, "cuda", "cuda", dtype, bias=False)
    check(shape, "cuda", "cuda", dtype, bias=True)

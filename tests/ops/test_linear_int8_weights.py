"""What linear_int8_weights means."""

import pytest
import torch

from gossamer.ops import linear_int8_weights, quantize_int8
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.linear_int8_weights import MAX_K
from tests.ops.gemm import rounding_of_digits
from tests.ops.spec import runs

OP = "linear_int8_weights"
RUNS = runs(OP)


def _codes(*shape, device="cpu"):
    return torch.randint(-128, 128, shape, dtype=torch.int8, device=device)


def _args(x=(3, 8), weight=(5, 8), scale=(5, 1), bias=None):
    x = torch.zeros(x) if isinstance(x, tuple) else x
    weight = torch.zeros(weight, dtype=torch.int8) if isinstance(weight, tuple) else weight
    return x, weight, torch.ones(scale) if isinstance(scale, tuple) else scale, bias


BAD_CALLS = [
    (_args(x=None), TypeError, f"{OP}: x is NoneType; must be a torch.Tensor"),
    (_args(x=(3, 0)), ValueError, f"{OP}: the last dimension of x is 0; must be at least 1"),
    (
        _args(x=(1, MAX_K + 1), weight=(5, MAX_K + 1)),
        ValueError,
        f"{OP}: the last dimension of x is {MAX_K + 1}; must be 1 to {MAX_K}",
    ),
    (_args(weight=torch.zeros(5, 8)), TypeError, f"{OP}: weight has dtype float32; must be int8"),
    (
        _args(weight=torch.zeros(5, 8, dtype=torch.int8, device="meta")),
        ValueError,
        f"{OP}: weight is on meta; must be on cpu, the device of x",
    ),
    (
        _args(weight=(5, 7)),
        ValueError,
        f"{OP}: weight has shape [5, 7]; must be [n, 8], k as in x",
    ),
    (
        _args(weight=torch.zeros(8, 5, dtype=torch.int8).T),
        ValueError,
        f"{OP}: weight has strides [1, 5]; rows must be contiguous",
    ),
    (
        _args(scale=(5,)),
        ValueError,
        f"{OP}: weight_scale has shape [5]; must be [5, 1] (one for each row of weight)",
    ),
    (
        _args(scale=torch.ones(5, 1).half()),
        TypeError,
        f"{OP}: weight_scale has dtype float16; must be float32",
    ),
    (
        _args(bias=torch.zeros(5).half()),
        TypeError,
        f"{OP}: bias has dtype float16; must be float32, the dtype of x",
    ),
    (
        _args(bias=torch.zeros(8)),
        ValueError,
        f"{OP}: bias has shape [8]; must be [5], one for each row of weight",
    ),
]


def check(shape, device, backend, dtype, bias):
    m, n, k = shape
    x, codes = torch.randn(m, k, device=device), _codes(n, k, device=device)
    x[:, k // 2] *= 100  # a channel like those that int8 of x would drown in
    x, scale = x.to(dtype), torch.rand(n, 1, device=device) / k
    shift = torch.randn(n, device=device).to(dtype) if bias else None
    got = linear_int8_weights(x, codes, scale, shift, backend=backend)
    weight = codes.double() * scale.double()
    want = x.double() @ weight.T
    want = want if shift is None else want + shift.double()
    size = x.double().abs() @ weight.abs().T + 1
    whole = m > 16 or k % 32 != 0  # the scale of a row; digits are rounded one by one, then added
    rounded = torch.finfo(dtype).eps * (2 * size if whole else want.abs())
    # Bytes are 0 to 255 before 128 is taken off.
    bound = rounding_of_digits(x, weight.abs() + scale.double(), k if whole else 32)
    wider = 2**-20 * (size + x.double().abs() @ (128 * scale.double()).expand_as(weight).T)
    assert got.dtype is dtype
    assert got.is_contiguous()
    assert ((got.double() - want).abs() <= rounded + bound + wider).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device):
    for dtype in FLOAT_DTYPES:
        for shape in ((1, 1, 1), (1, 40, 32), (5, 41, 96), (16, 7, 64), (17, 24, 64), (3, 20, 33)):
            check(shape, device, backend, dtype, bias=shape[0] != 5)
    codes, scale = _codes(4, 8, device=device), torch.ones(4, 1, device=device)
    none = torch.zeros(0, 8, device=device)
    assert linear_int8_weights(none, codes, scale, backend=backend).shape == (0, 4)


@pytest.mark.parametrize("rows", [3, 20])
def test_keeps_what_int8_of_x_loses(rows):
    """A hundredth of the error, next to one channel that is a hundred times as large."""
    x, weight = torch.randn(rows, 96), torch.randn(40, 96)
    x[:, 5] *= 100
    codes, scale = quantize_int8(weight)
    want = x.double() @ (codes.double() * scale.double()).T
    x_codes, x_scale = quantize_int8(x)
    coarse = (x_codes.double() * x_scale.double()) @ (codes.double() * scale.double()).T
    error = (linear_int8_weights(x, codes, scale) - want).norm()
    assert error < (coarse - want).norm() / 100


@pytest.mark.parametrize("rows", [2, 3, 30])
def test_rows_that_are_not_finite(rows):
    x, codes, scale = torch.randn(rows, 64), _codes(9, 64), torch.rand(9, 1)
    want = linear_int8_weights(x, codes, scale)
    x[1, 40] = float("nan")
    got = linear_int8_weights(x, codes, scale)
    assert got[1].isnan().all()
    assert torch.equal(got[2:], want[2:])


def test_codes_and_rows_may_lie_anywhere():
    x, codes, scale = torch.randn(6, 2, 64), _codes(40, 64), torch.rand(40, 1)
    want = linear_int8_weights(x, codes, scale)
    apart = torch.zeros(40, 100, dtype=torch.int8)
    apart[:, 7:71] = codes
    wide = torch.zeros(2, 6, 64).transpose(0, 1).copy_(x)
    scales = torch.zeros(40, 3)[:, 1:2].copy_(scale)
    assert torch.equal(linear_int8_weights(wide, apart[:, 7:71], scales), want)


def test_a_row_does_not_depend_on_the_others():
    x, codes, scale = torch.randn(16, 192), _codes(40, 192), torch.rand(40, 1)
    whole = linear_int8_weights(x, codes, scale)
    for count in (1, 2, 3, 7):
        assert torch.equal(linear_int8_weights(x[:count], codes, scale), whole[:count])

"""What linear_int4 means."""

import pytest
import torch

from gossamer.ops import linear_int4
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.gemm import rounding_of_digits
from tests.ops.spec import runs

RUNS = runs("linear_int4")


def _weights(n, k, group, device="cpu"):
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    scale = (torch.rand(n, k // group, device=device) / 16).half()
    return codes, scale, (torch.rand(n, k // group, device=device) * 15).half()


def _args(x=(3, 64), codes=(5, 32), scale=(5, 2), zero=(5, 2), bias=None):
    x = torch.zeros(x) if isinstance(x, tuple) else x
    codes = torch.zeros(codes, dtype=torch.uint8) if isinstance(codes, tuple) else codes
    halves = (torch.zeros(a).half() if isinstance(a, tuple) else a for a in (scale, zero))
    return x, codes, next(halves), next(halves), bias


BAD_CALLS = [
    (_args(x=None), TypeError, "linear_int4: x is NoneType; must be a torch.Tensor"),
    (
        _args(x=(3, 40)),
        ValueError,
        "linear_int4: the last dimension of x is 40; must be a multiple of 32",
    ),
    (
        _args(codes=torch.zeros(5, 32)),
        TypeError,
        "linear_int4: codes has dtype float32; must be uint8",
    ),
    (
        _args(codes=(5, 31)),
        ValueError,
        "linear_int4: codes has shape [5, 31]; must be [n, 32], two to a byte",
    ),
    (
        _args(codes=torch.zeros(32, 5, dtype=torch.uint8).T),
        ValueError,
        "linear_int4: codes has strides [1, 5]; rows must be contiguous",
    ),
    (
        _args(scale=torch.zeros(5, 2)),
        TypeError,
        "linear_int4: scale has dtype float32; must be float16",
    ),
    (
        _args(scale=(5, 4)),
        ValueError,
        "linear_int4: scale has shape [5, 4]; must be [5, 64 / group] for a group that is a "
        "multiple of 32",
    ),
    (
        _args(zero=(5, 1)),
        ValueError,
        "linear_int4: zero has shape [5, 1]; must be [5, 2], as scale",
    ),
    (
        _args(zero=torch.zeros(5, 2, device="meta").half()),
        ValueError,
        "linear_int4: zero is on meta; must be on cpu, the device of x",
    ),
    (
        _args(bias=torch.zeros(4)),
        ValueError,
        "linear_int4: bias has shape [4]; must be [5], one for each row of codes",
    ),
]


def _unpacked(codes, scale, zero):
    """Weight by weight, in float64."""
    k = codes.shape[1] * 2
    column = torch.arange(k)
    byte = codes.cpu()[:, column // 32 * 16 + column % 16].int()
    code = torch.where(column % 32 < 16, byte & 15, byte >> 4)
    group = column // (k // scale.shape[1])
    return (code - zero.cpu().double()[:, group]) * scale.cpu().double()[:, group]


def check(shape, group, device, backend, dtype, bias):
    m, n, k = shape
    weights = _weights(n, k, group, device)
    x = torch.randn(m, k, device=device).to(dtype)
    shift = torch.randn(n, device=device).to(dtype) if bias else None
    got = linear_int4(x, *weights, shift, backend=backend).cpu().double()
    weight = _unpacked(*weights)
    want = x.cpu().double() @ weight.T
    size = x.cpu().double().abs() @ weight.abs().T + 1
    if shift is not None:
        want += shift.cpu().double()
    # The result is rounded once, and for tensor cores each weight is; sums are in float32.
    rounded = torch.finfo(dtype).eps * (size if backend == "triton" or m > 16 else want.abs())
    if backend == "cpu" and m <= 16:
        # Codes are multiplied before zeros are taken off: the bound is of codes up to 15 and zeros.
        _, scale, zero = weights
        most = (scale.double() * zero.double().clamp_min(15)).repeat_interleave(group, 1)
        rounded = rounded + rounding_of_digits(x, weight) + 2**-22 * (x.double().abs() @ most.T)
    assert ((got - want).abs() <= rounded + 2**-20 * size).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device):
    interpreted = backend == "triton" and device == "cpu"
    shapes = (((1, 5, 32), 32), ((3, 33, 96), 96), ((5, 40, 256), 64), ((17, 7, 128), 128))
    for dtype in FLOAT_DTYPES[:2] if interpreted else FLOAT_DTYPES:
        for shape, group in shapes:
            check(shape, group, device, backend, dtype, bias=shape[0] != 3)
    check((70, 40, 64), 32, device, backend, torch.float32, bias=True)


def test_rows_may_be_apart():
    """Columns of a wider matrix, as a rank of tensor parallelism has them."""
    codes, scale, zero = _weights(12, 256, 64)
    x = torch.randn(4, 256)[:, 64:192]
    part = codes[:, 32:96], scale[:, 1:3], zero[:, 1:3]
    want = linear_int4(x.contiguous(), *(t.contiguous() for t in part))
    assert torch.equal(linear_int4(x, *part), want)


def test_a_row_does_not_depend_on_the_others():
    weights = _weights(40, 192, 32)
    x = torch.randn(16, 192)
    whole = linear_int4(x, *weights)
    for count in (1, 2, 3, 7):
        assert torch.equal(linear_int4(x[:count], *weights), whole[:count])

"""What scaled_softmax means."""

import pytest
import torch

from gossamer.ops import scaled_softmax
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, rounding_factor, runs

RUNS = runs("scaled_softmax")


def _inputs(shape, make):
    yield (make(*shape),)
    yield make(*shape), -2.5


def _magnitude(x, scale=1.0):
    """An exponential is as exact as the difference that it is taken of."""
    y = x * scale
    sizes = 1 + y.abs() + y.abs().amax(-1, keepdim=True) if y.numel() else y
    return (torch.softmax(y, dim=-1) * sizes,)


SPEC = OpSpec(
    op="scaled_softmax",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    widths=(0, 8192),  # which all backends take
    bad_calls=[
        (([1.0], 1.0), TypeError, "scaled_softmax: x is list; must be a torch.Tensor"),
        (
            (torch.zeros(2, 4).double(), 1.0),
            TypeError,
            "scaled_softmax: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            (torch.zeros(2, 4), "large"),
            TypeError,
            "scaled_softmax: scale is str; must be a float",
        ),
        (
            (torch.tensor(1.0), 1.0),
            ValueError,
            "scaled_softmax: x has 0 dimensions; must have at least 1",
        ),
        *(
            (
                (torch.zeros(2, 4), scale),
                ValueError,
                f"scaled_softmax: scale is {scale}; must be finite in float32",
            )
            for scale in (float("inf"), float("nan"), 1e39, -1e39)
        ),
    ],
)


def test_is_torch_softmax():
    x = torch.randn(3, 5, 64)
    torch.testing.assert_close(scaled_softmax(x, 0.3), torch.softmax(x * 0.3, dim=-1))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, dtype):
    """As torch has them; large scores do not overflow, and masked ones get nothing."""
    inf, nan = float("inf"), float("nan")
    rows = [[1, -inf, 1], [-inf] * 3, [inf, 1, 0], [nan, 1, 0], [6e4, -6e4, 5e4], [0, 0, 0]]
    x = torch.tensor(rows, dtype=dtype, device=device)
    got = scaled_softmax(x, 2.0, backend=backend).cpu()
    want = torch.softmax(x.cpu().float() * 2, dim=-1).to(dtype)
    unit = rounding_factor(backend, dtype) * torch.finfo(dtype).eps
    torch.testing.assert_close(got, want, equal_nan=True, rtol=unit, atol=0)


def _check_width(width, dtype, device, backend, rows=3):
    x = torch.randn(rows, width + 8, device=device).to(dtype)
    for args in ((x[:, 3 : width + 3], 4.0), (x[:, :width].contiguous(), -0.5)):
        got = scaled_softmax(*args, backend=backend)
        SPEC.check(got, args, rounding_factor(backend, dtype))


WIDTHS = [1, 2, 15, 16, 17, 31, 64, 65, 257, 1000, 4095, 4096, 8191, 8192]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    for width in [*WIDTHS, 8193, 70_001]:
        _check_width(width, dtype, "cpu", "cpu")


@pytest.mark.parametrize("width", [32_768, 32_769, 65_537])
def test_wide_rows_in_triton(width):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_width(width, torch.float16, device, "triton", rows=2)


def test_parts_that_are_masked_throughout():
    """A row of several parts: -inf in all of one, in all of them, and a NaN far away."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(3, 40_000, device=device)
    x[0, :20_000], x[1], x[2, -1] = -float("inf"), -float("inf"), float("nan")
    got = scaled_softmax(x, 1.0, backend="triton").cpu()
    torch.testing.assert_close(got, torch.softmax(x.cpu(), -1), equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_gpu(dtype, backend):
    for width in [*WIDTHS, *range(40, 8192, 837), *range(64, 8192, 808)]:
        _check_width(width, dtype, "cuda", backend)


@pytest.mark.gpu
def test_rows_too_wide_for_the_cuda_kernel_go_to_triton():
    x = torch.randn(2, 128_256, device="cuda").bfloat16()
    SPEC.check(scaled_softmax(x), (x,))
    with pytest.raises(RuntimeError, match="the last dimension of x is 128256; must be at most"):
        scaled_softmax(x, backend="cuda")

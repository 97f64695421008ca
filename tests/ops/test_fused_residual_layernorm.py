"""What fused_residual_layernorm means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import fused_residual_layernorm
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import LAYOUTS, OpSpec, poison, rounding_factor, runs

RUNS = runs("fused_residual_layernorm")


def _inputs(shape, make):
    yield make(*shape), make(*shape), make(shape[-1]), make(shape[-1])
    yield make(*shape), make(*shape), make(shape[-1]), None, 0.5


def _normed(h, weight, bias, eps):
    off = h - h.mean(-1, keepdim=True)
    scaled = off / torch.sqrt(off.square().mean(-1, keepdim=True) + eps) * weight
    return scaled if bias is None else scaled + bias


def _magnitude(x, residual, weight, bias=None, eps=1e-5, input_bias=None):
    terms = x.abs() + residual.abs() + (0 if input_bias is None else input_bias.abs())
    h = x + residual + (0 if input_bias is None else input_bias)
    off = h - h.mean(-1, keepdim=True)
    deviation = torch.sqrt(off.square().mean(-1, keepdim=True) + eps)
    # A mean, as exact as what it is the mean of, is subtracted.
    sizes = (h.abs() + h.abs().mean(-1, keepdim=True)) / deviation * weight.abs()
    return sizes + (0 if bias is None else bias.abs()), terms


def _oracle(got, x, residual, weight, bias=None, eps=1e-5, input_bias=None):
    """The norm of the sum that was returned: how that was rounded is checked by itself."""
    added = x + residual + (0 if input_bias is None else input_bias)
    return _normed(got[1].double(), weight, bias, eps), added


def _args(**changes):
    args = {
        "x": torch.zeros(2, 4),
        "residual": torch.zeros(2, 4),
        "weight": torch.zeros(4),
        "bias": torch.zeros(4),
        "eps": 1e-5,
        "input_bias": torch.zeros(4),
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


NAME = "fused_residual_layernorm"
SPEC = OpSpec(
    op=NAME,
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1, 1),
    oracle=_oracle,
    widths=(1, 65_536),
    bad_calls=[
        (_args(x=None), TypeError, f"{NAME}: x is NoneType; must be a torch.Tensor"),
        (
            _args(residual=torch.zeros(2, 4).half()),
            TypeError,
            f"{NAME}: residual has dtype float16; must be float32, the dtype of x",
        ),
        (_args(weight=None), TypeError, f"{NAME}: weight is NoneType; must be a torch.Tensor"),
        (
            _args(bias=torch.zeros(4).half()),
            TypeError,
            f"{NAME}: bias has dtype float16; must be float32, the dtype of x",
        ),
        (_args(eps="small"), TypeError, f"{NAME}: eps is str; must be a float"),
        (
            _args(residual=torch.zeros(4)),
            ValueError,
            f"{NAME}: residual has shape [4]; must be [2, 4], the shape of x",
        ),
        (
            _args(bias=torch.zeros(3)),
            ValueError,
            f"{NAME}: bias has shape [3]; must be [4], the last dimension of x",
        ),
        (
            _args(input_bias=torch.zeros(2, 4)),
            ValueError,
            f"{NAME}: input_bias has shape [2, 4]; must be [4], the last dimension of x",
        ),
        (
            _args(input_bias=torch.zeros(4, device="meta")),
            ValueError,
            f"{NAME}: input_bias is on meta; must be on cpu, the device of x",
        ),
        (_args(eps=-1.0), ValueError, f"{NAME}: eps is -1.0; must be finite and >= 0"),
    ],
)


def test_is_torch_layer_norm_of_the_sum():
    x, residual = torch.randn(2, 3, 5, 64)
    weight, bias, input_bias = torch.randn(3, 64)
    normed, added = fused_residual_layernorm(x, residual, weight, bias, 1e-5, input_bias)
    torch.testing.assert_close(added, x + input_bias + residual)
    torch.testing.assert_close(normed, F.layer_norm(added, (64,), weight, bias, 1e-5))
    normed, added = fused_residual_layernorm(x, residual, weight)
    torch.testing.assert_close(normed, F.layer_norm(x + residual, (64,), weight))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_bias_of_the_layer_before(op, backend, device, dtype, layout):
    """What the grid of test_parity does not have."""

    def make(*shape):
        return LAYOUTS[layout](torch.randn(shape, device=device).to(dtype))

    for shape in ((3, 33), (2, 3, 128)):
        n = shape[-1]
        for bias in (make(n), None):
            args = (make(*shape), make(*shape), make(n), bias, 1e-5, make(n))
            poison([args[0].shape] * 2, dtype, device)
            got = fused_residual_layernorm(*args, backend=backend)
            SPEC.check(got, args, rounding_factor(backend, dtype))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_a_mean_far_from_zero_leaves_the_variance_exact(op, backend, device):
    """mean(x^2) - mean(x)^2 would have no digit left here.

    What remains is the rounding of the mean, a float32 sum: all elements are off by it, in units of
    a deviation of 1. 3 roundings of 2^-24 * 3000 were the most in 60 rows on a GPU, for any
    backend; the subtraction of the mean is exact, and all else is relative to the result.
    """
    for width in (512, 9000):
        x = torch.randn(2, width, device=device) + 3000
        zeros, ones = torch.zeros_like(x), torch.ones(width, device=device)
        normed, _ = fused_residual_layernorm(x, zeros, ones, eps=0.0, backend=backend)
        want = _normed(x.double(), 1.0, None, 0.0)
        torch.testing.assert_close(normed.double(), want, rtol=1e-6, atol=8 * 2**-24 * 3000)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_norms_the_rounded_sum(op, backend, device):
    """The first result follows from the second, so fused and unfused layers see the same stream."""
    x, residual = torch.randn(2, 8, 96, device=device).half()
    weight = torch.ones(96, device=device).half()
    normed, added = fused_residual_layernorm(x, residual, weight, backend=backend)
    again, _ = fused_residual_layernorm(added, torch.zeros_like(x), weight, backend=backend)
    assert torch.equal(normed, again)


WIDTHS = [1, 2, 15, 16, 17, 63, 65, 257, 1000, 4097, 8192, 8193, 65_535, 65_536]


def _check_width(width, dtype, device, backend):
    x, residual = torch.randn(2, 2, width, device=device).to(dtype)
    weight, bias, input_bias = torch.randn(3, width, device=device).to(dtype)
    args = (x, residual, weight, bias, 1e-5, input_bias)
    got = fused_residual_layernorm(*args, backend=backend)
    SPEC.check(got, args, rounding_factor(backend, dtype))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    for width in WIDTHS:
        _check_width(width, dtype, "cpu", "cpu")


@pytest.mark.parametrize("width", [8192, 65_536])
def test_wide_rows_in_triton(width):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_width(width, torch.float16, device, "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_gpu(dtype, backend):
    some = [*range(1, 200, 7), *range(512, 65_537, 3001), *range(512, 65_537, 4096), *WIDTHS]
    for width in some if backend == "cuda" else WIDTHS:
        _check_width(width, dtype, "cuda", backend)

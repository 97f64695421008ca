"""What fused_residual_rmsnorm means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import OPS, fused_residual_rmsnorm
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, runs


def _inputs(shape, make):
    for eps in (1e-6, 0.5):
        yield make(*shape), make(*shape), make(shape[-1]), eps


def _magnitude(x, residual, weight, eps):
    normed, _ = OPS["fused_residual_rmsnorm"].reference(x, residual, weight, eps)
    return normed.abs(), x.abs() + residual.abs()


def _oracle(got, x, residual, weight, eps):
    """The norm of the sum that was returned: how that was rounded is checked by itself."""
    h = got[1].double()
    normed = h / torch.sqrt(h.square().mean(-1, keepdim=True) + eps) * weight
    return normed, x + residual


SPEC = OpSpec(
    op="fused_residual_rmsnorm",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1, 1),
    oracle=_oracle,
    widths=(1, 65_536),
    bad_calls=[
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), None, 1e-6),
            TypeError,
            "fused_residual_rmsnorm: weight is NoneType; must be a torch.Tensor",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4).half(), torch.zeros(4), 1e-6),
            TypeError,
            "fused_residual_rmsnorm: residual has dtype float16; must be float32, the dtype of x",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(4), "small"),
            TypeError,
            "fused_residual_rmsnorm: eps is str; must be a float",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4), torch.zeros(4), 1e-6),
            ValueError,
            "fused_residual_rmsnorm: residual has shape [4]; must be [2, 4], the shape of x",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(1, 4), 1e-6),
            ValueError,
            "fused_residual_rmsnorm: weight has shape [1, 4]; must be [4], the last dimension of x",
        ),
        (
            (torch.zeros(1, 65_537), torch.zeros(1, 65_537), torch.zeros(65_537), 1e-6),
            ValueError,
            "fused_residual_rmsnorm: the last dimension of x is 65537; must be 1 to 65536",
        ),
        (
            (torch.zeros(3, 0), torch.zeros(3, 0), torch.zeros(0), 1e-6),
            ValueError,
            "fused_residual_rmsnorm: the last dimension of x is 0; must be 1 to 65536",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(4), -1.0),
            ValueError,
            "fused_residual_rmsnorm: eps is -1.0; must be finite and >= 0",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(4), 10**400),
            ValueError,
            f"fused_residual_rmsnorm: eps is {10**400}; must be finite and >= 0",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(4), float("inf")),
            ValueError,
            "fused_residual_rmsnorm: eps is inf; must be finite and >= 0",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(4), float("nan")),
            ValueError,
            "fused_residual_rmsnorm: eps is nan; must be finite and >= 0",
        ),
    ],
)


def test_is_torch_rms_norm_of_the_sum():
    x, residual, weight = torch.randn(3, 5, 64), torch.randn(3, 5, 64), torch.randn(64)
    normed, new_residual = fused_residual_rmsnorm(x, residual, weight, 1e-5)
    torch.testing.assert_close(new_residual, x + residual, rtol=0, atol=0)
    torch.testing.assert_close(normed, F.rms_norm(x + residual, (64,), weight, 1e-5))


@pytest.mark.parametrize(("op", "backend", "device"), runs("fused_residual_rmsnorm"))
def test_norms_the_rounded_sum(op, backend, device):
    """The first result follows from the second, so fused and unfused layers see the same stream."""
    x, residual = torch.randn(2, 8, 96, device=device).half()
    weight = torch.ones(96, device=device).half()
    normed, new_residual = fused_residual_rmsnorm(x, residual, weight, backend=backend)
    again, _ = fused_residual_rmsnorm(new_residual, torch.zeros_like(x), weight, backend=backend)
    assert torch.equal(normed, again)


def _check_width(width: int, dtype: torch.dtype, device: str, backend: str) -> None:
    args = [torch.randn(n, device=device).to(dtype) for n in ((2, width), (2, width), (width,))]
    SPEC.check(fused_residual_rmsnorm(*args, 1e-6, backend=backend), (*args, 1e-6))


@pytest.mark.parametrize(("op", "backend", "device"), runs("fused_residual_rmsnorm"))
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, dtype):
    """Rows of zeros, NaN, infinity, and a sum that overflows to infinity."""
    inf, nan, big = float("inf"), float("nan"), torch.finfo(dtype).max
    x = torch.tensor([[0.0, 0], [1, nan], [1, inf], [1, big]], dtype=dtype, device=device)
    weight = torch.ones(2, dtype=dtype, device=device)
    got = fused_residual_rmsnorm(x, x, weight, 1e-6, backend=backend)
    want = torch.tensor([[0.0, 0], [2, nan], [2, inf], [2, inf]], dtype=dtype)
    torch.testing.assert_close(got[1].cpu(), want, equal_nan=True)
    want = torch.tensor([[0.0, 0], [nan, nan], [0, nan], [0, nan]], dtype=dtype)
    torch.testing.assert_close(got[0].cpu(), want, equal_nan=True)


WIDTHS = [*range(1, 70), 255, 256, 257, 1000, 4095, 4096, 8191, 8193, 32_769, 65_535, 65_536]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    for width in WIDTHS:
        _check_width(width, dtype, "cpu", "cpu")


@pytest.mark.parametrize("width", [8192, 8193, 65_536])
def test_wide_rows_in_triton(width):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_width(width, torch.float16, device, "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_gpu(dtype, backend):
    some = [*range(1, 600), *range(600, 65_537, 509), *WIDTHS]
    for width in some if backend == "cuda" else WIDTHS:
        _check_width(width, dtype, "cuda", backend)

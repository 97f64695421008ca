"""What rmsnorm means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import OPS, fused_residual_rmsnorm, rmsnorm
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, poison, rounding_factor, runs

RUNS = runs("rmsnorm")


def _inputs(shape, make):
    for eps in (1e-6, 0.5):
        yield make(*shape), make(shape[-1]), eps


SPEC = OpSpec(
    op="rmsnorm",
    inputs=_inputs,
    magnitude=lambda *args: (OPS["rmsnorm"].reference(*args).abs(),),
    roundings=(1,),
    widths=(1, 65_536),
    bad_calls=[
        (
            (torch.zeros(2, 4), None, 1e-6),
            TypeError,
            "rmsnorm: weight is NoneType; must be a torch.Tensor",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4).half(), 1e-6),
            TypeError,
            "rmsnorm: weight has dtype float16; must be float32, the dtype of x",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4), "small"),
            TypeError,
            "rmsnorm: eps is str; must be a float",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(1, 4), 1e-6),
            ValueError,
            "rmsnorm: weight has shape [1, 4]; must be [4], the last dimension of x",
        ),
        (
            (torch.zeros(1, 65_537), torch.zeros(65_537), 1e-6),
            ValueError,
            "rmsnorm: the last dimension of x is 65537; must be 1 to 65536",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4), -1.0),
            ValueError,
            "rmsnorm: eps is -1.0; must be finite and >= 0",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4), float("nan")),
            ValueError,
            "rmsnorm: eps is nan; must be finite and >= 0",
        ),
    ],
)


def test_is_torch_rms_norm():
    x, weight = torch.randn(3, 5, 64), torch.randn(64)
    torch.testing.assert_close(rmsnorm(x, weight, 1e-5), F.rms_norm(x, (64,), weight, 1e-5))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_is_the_norm_of_the_fused_one(op, backend, device):
    """Bit for bit: a first layer, which has no residual yet, norms like all others."""
    for width in (96, 4096, 9000):
        x, weight = torch.randn(3, width, device=device).half(), torch.randn(width, device=device)
        want, _ = fused_residual_rmsnorm(x, torch.zeros_like(x), weight.half(), backend=backend)
        assert torch.equal(rmsnorm(x, weight.half(), backend=backend), want)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, dtype):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[0.0, 0], [1, nan], [1, inf]], dtype=dtype, device=device)
    got = rmsnorm(x, torch.ones(2, dtype=dtype, device=device), backend=backend)
    want = torch.tensor([[0.0, 0], [nan, nan], [0, nan]], dtype=dtype)
    torch.testing.assert_close(got.cpu(), want, equal_nan=True)


WIDTHS = [1, 2, 15, 16, 17, 63, 64, 65, 257, 1000, 4095, 4097, 8193, 65_535, 65_536]


def _check_width(width, dtype, device, backend):
    args = torch.randn(2, width, device=device).to(dtype), torch.randn(width, device=device)
    args = (args[0], args[1].to(dtype), 1e-6)
    SPEC.check(rmsnorm(*args, backend=backend), args, rounding_factor(backend, dtype))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    for width in WIDTHS:
        _check_width(width, dtype, "cpu", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_gpu(dtype, backend):
    some = [*range(1, 200, 7), *range(512, 65_537, 3001), *range(512, 65_537, 4096), *WIDTHS]
    for width in some if backend == "cuda" else WIDTHS:
        _check_width(width, dtype, "cuda", backend)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_very_many_rows_of_middle_width(dtype):
    """Two packs to a thread, not all threads with as many."""
    for width in (4104, 5000, 8192):
        x, weight = torch.randn(2050, width, device="cuda"), torch.randn(width, device="cuda")
        args = x.to(dtype), weight.to(dtype), 1e-6
        poison([x.shape], dtype, "cuda")
        SPEC.check(rmsnorm(*args, backend="cuda"), args)

"""What silu_mul means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import silu_mul
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, rounding_factor, runs

RUNS = runs("silu_mul")


def _inputs(shape, make):
    yield (make(*shape[:-1], 2 * shape[-1]),)


def _halves(x):
    return x.tensor_split(2, dim=-1)


def _product(x):
    gate, up = _halves(x)
    return gate * torch.sigmoid(gate) * up


SPEC = OpSpec(
    op="silu_mul",
    inputs=_inputs,
    magnitude=lambda x: (_product(x).abs(),),
    roundings=(1,),
    bad_calls=[
        (([1.0, 2.0],), TypeError, "silu_mul: x is list; must be a torch.Tensor"),
        (
            (torch.zeros(2, 4).double(),),
            TypeError,
            "silu_mul: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(4)]),),
            TypeError,
            "silu_mul: x is a nested tensor; must be an ordinary one",
        ),
        (
            (torch.eye(2).to_sparse(),),
            TypeError,
            "silu_mul: x has layout torch.sparse_coo; must be torch.strided",
        ),
        (
            (torch.tensor(1.0),),
            ValueError,
            "silu_mul: x has 0 dimensions; must have at least 1",
        ),
        (
            (torch.zeros(2, 5),),
            ValueError,
            "silu_mul: the last dimension of x is 5; must be even",
        ),
    ],
)


def test_is_silu_of_the_first_half_times_the_second():
    x = torch.randn(3, 5, 64)
    torch.testing.assert_close(silu_mul(x), F.silu(x[..., :32]) * x[..., 32:])


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, dtype):
    """Every pair of these, also with zero times infinity, as torch has them in float32."""
    inf, big, tiny = float("inf"), torch.finfo(dtype).max, torch.finfo(dtype).tiny
    some = [inf, -inf, float("nan"), big, -big, 90.0, -90.0, -200.0, 1.0, -1.0, 0.0, -0.0, tiny]
    pairs = torch.cartesian_prod(torch.tensor(some), torch.tensor(some)).to(dtype)
    # -90 and -200 give 0 or a number too small for float32, which counts only times a huge one.
    tail = (pairs[:, 0] < -80) & (pairs[:, 1].abs() > 1e30) & pairs.isfinite().all(1)
    gate, up = pairs[~tail].unbind(1)
    got = silu_mul(torch.cat((gate, up)).to(device), backend=backend)
    want = (F.silu(gate.float()) * up.float()).to(dtype)
    relative = 1e-6 + rounding_factor(backend, dtype) * torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=relative, atol=1e-35)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_the_tail_keeps_its_digits(op, backend, device, dtype):
    gate = torch.linspace(-80.0, 0.0, 1000).to(dtype)
    got = silu_mul(torch.cat((gate, torch.ones_like(gate))).to(device), backend=backend)
    want = gate.double() * torch.sigmoid(gate.double())
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    relative = 1e-5 + 0.51 * rounding_factor(backend, dtype) * torch.finfo(dtype).eps
    torch.testing.assert_close(got.cpu().double(), want, rtol=relative, atol=spacing)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_the_product_is_rounded_once(op, backend, device):
    """Not silu first: its 11 bits times a half odd number would be rounded twice."""
    gate = torch.linspace(-8, 8, 512, device=device).half()
    up = torch.linspace(1, 2, 512, device=device).half()
    got = silu_mul(torch.cat((gate, up)), backend=backend)
    want = _product(torch.cat((gate, up)).double())
    error = (got.double() - want).abs() / want.abs().clamp_min(torch.finfo(torch.half).tiny)
    assert error.max() <= 0.51 * torch.finfo(torch.half).eps


def _check_width(width, dtype, device, backend):
    x = torch.randn(3, 2 * width + 8, device=device).to(dtype)[:, 3 : 2 * width + 3]
    for args in ((x,), (x.contiguous(),)):
        got = silu_mul(*args, backend=backend)
        SPEC.check(got, args, rounding_factor(backend, dtype))


WIDTHS = [*range(1, 70), 255, 256, 257, 1000, 1024, 4095, 4097, 14_336]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    for width in WIDTHS:
        _check_width(width, dtype, "cpu", "cpu")


@pytest.mark.parametrize("width", [1, 1023, 1024, 1025, 3000])
def test_widths_in_triton(width):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_width(width, torch.float16, device, "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_gpu(dtype, backend):
    for width in WIDTHS:
        _check_width(width, dtype, "cuda", backend)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("shape", [(3, (1 << 30) + 8), ((1 << 19) + 3, 8194)], ids=str)
def test_more_than_2_31_elements(backend, shape):
    x = torch.zeros(shape, dtype=torch.bfloat16, device="cuda")
    some = [0, shape[0] // 2, shape[0] - 1]
    width = shape[1] // 2
    columns = torch.tensor([0, 1, width - 1, width, width + 1, shape[1] - 1], device="cuda")
    for row in some:
        x[row, columns] = torch.randn(6, device="cuda").bfloat16()
    got = silu_mul(x, backend=backend)
    for row in some:
        torch.testing.assert_close(got[row], silu_mul(x[row], backend="reference"))


def test_threads_agree_with_one():
    """Large inputs are cut at any element, not only between rows."""
    x = torch.randn(37, 2 * 1111)
    torch.testing.assert_close(silu_mul(x), torch.stack([silu_mul(row) for row in x]))

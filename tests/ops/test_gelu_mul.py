"""What gelu_mul means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import gelu_mul
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, rounding_factor, runs

RUNS = runs("gelu_mul")


def _inputs(shape, make):
    yield (make(*shape[:-1], 2 * shape[-1]),)
    yield make(*shape[:-1], 2 * shape[-1]), "tanh"


def _magnitude(x, approximate="none"):
    gate, up = x.tensor_split(2, dim=-1)
    return (gate.abs() * up.abs(),)


SPEC = OpSpec(
    op="gelu_mul",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    bad_calls=[
        (([1.0, 2.0], "none"), TypeError, "gelu_mul: x is list; must be a torch.Tensor"),
        (
            (torch.zeros(2, 4).long(), "none"),
            TypeError,
            "gelu_mul: x has dtype int64; must be one of float32, float16, bfloat16",
        ),
        (
            (torch.tensor(1.0), "none"),
            ValueError,
            "gelu_mul: x has 0 dimensions; must have at least 1",
        ),
        (
            (torch.zeros(2, 5), "none"),
            ValueError,
            "gelu_mul: the last dimension of x is 5; must be even",
        ),
        (
            (torch.zeros(2, 4), "erf"),
            ValueError,
            "gelu_mul: approximate is 'erf'; must be 'none' or 'tanh'",
        ),
    ],
)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_is_gelu_of_the_first_half_times_the_second(approximate):
    x = torch.randn(3, 5, 64)
    want = F.gelu(x[..., :32], approximate=approximate) * x[..., 32:]
    torch.testing.assert_close(gelu_mul(x, approximate), want)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths(op, backend, device, dtype):
    """Around vectors, packs and blocks; rows of a wider tensor."""
    for width in (1, 7, 8, 31, 64, 257, 1025):
        x = torch.randn(3, 2 * width + 8, device=device).to(dtype)[:, 3 : 2 * width + 3]
        for args in ((x, "none"), (x.contiguous(), "tanh")):
            got = gelu_mul(*args, backend=backend)
            SPEC.check(got, args, rounding_factor(backend, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_many_elements_on_the_gpu(backend):
    """Sizes on both sides of where a thread takes more than one pack."""
    for dtype in FLOAT_DTYPES:
        for shape in ((16, 8192), (260, 8192), (2100, 8192), (1, 4_400_000)):
            args = (torch.randn(shape, device="cuda").to(dtype), "none")
            SPEC.check(gelu_mul(*args, backend=backend), args)

"""What fused_add_gelu means."""

import math

import pytest
import torch

from gossamer.ops import fused_add_gelu
from tests.ops.spec import DTYPES, OpSpec, runs


def _inputs(shape, make):
    for approximate in ("none", "tanh"):
        yield make(*shape), make(shape[-1]), approximate


SPEC = OpSpec(
    op="fused_add_gelu",
    inputs=_inputs,
    magnitude=lambda x, bias, approximate: (x.abs() + bias.abs(),),
    roundings=(1,),
    bad_calls=[
        (
            ([1.0], torch.zeros(1), "none"),
            TypeError,
            "fused_add_gelu: x is list; must be a torch.Tensor",
        ),
        (
            (torch.zeros(2, 4).double(), torch.zeros(4).double(), "none"),
            TypeError,
            "fused_add_gelu: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4).half(), "none"),
            TypeError,
            "fused_add_gelu: bias has dtype float16; must be float32, the dtype of x",
        ),
        (
            (torch.eye(2).to_sparse(), torch.zeros(2), "none"),
            TypeError,
            "fused_add_gelu: x has layout torch.sparse_coo; must be torch.strided",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4, device="meta"), "none"),
            ValueError,
            "fused_add_gelu: bias is on meta; must be on cpu, the device of x",
        ),
        (
            (torch.tensor(1.0), torch.zeros(1), "none"),
            ValueError,
            "fused_add_gelu: x has 0 dimensions; must have at least 1",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(5), "none"),
            ValueError,
            "fused_add_gelu: bias has shape [5]; must be [4], the last dimension of x",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4), "erf"),
            ValueError,
            "fused_add_gelu: approximate is 'erf'; must be 'none' or 'tanh'",
        ),
    ],
)


def test_known_values():
    x = torch.tensor([-1.0, 0.0, 1.0, 3.0])
    phi = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()]
    torch.testing.assert_close(fused_add_gelu(x, torch.zeros(4)), x * torch.tensor(phi))


@pytest.mark.parametrize(("op", "backend", "device"), runs("fused_add_gelu"))
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(op, backend, device, approximate, dtype):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, 3e38, -3e38, -20.0, 1e-40, -0.0, 88.0, -14.0, -12.9]).to(
        dtype
    )
    bias = torch.zeros_like(x)
    got = fused_add_gelu(x.to(device), bias.to(device), approximate, backend=backend)
    want = torch.nn.functional.gelu(x.double(), approximate=approximate).to(dtype)
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=1e-6, atol=1e-6)


def test_the_tail_keeps_its_digits():
    """1 + erf(x) would cancel here: eager torch has no correct digit left at -5.5."""
    x = torch.linspace(-12.0, -3.0, 1000)
    got = fused_add_gelu(x, torch.zeros(1000), backend="cpu")
    want = 0.5 * x.double() * torch.special.erfc(-x.double() / math.sqrt(2))
    torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=0)

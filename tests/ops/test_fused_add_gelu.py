"""What fused_add_gelu means."""

import importlib
import math

import pytest
import torch

from gossamer.ops import fused_add_gelu
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, rounding_factor, runs


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
            (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), torch.zeros(2), "none"),
            TypeError,
            "fused_add_gelu: x is a nested tensor; must be an ordinary one",
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
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, approximate, dtype):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([inf, -inf, nan, 3e38, -3e38, -20.0, 1e-40, -0.0, 88.0, -14.0, -12.9]).to(
        dtype
    )
    bias = torch.zeros_like(x)
    got = fused_add_gelu(x.to(device), bias.to(device), approximate, backend=backend)
    want = torch.nn.functional.gelu(x.double(), approximate=approximate).to(dtype)
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("op", "backend", "device"), runs("fused_add_gelu"))
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_the_tail_keeps_its_digits(op, backend, device, approximate, dtype):
    """1 + erf(x) would cancel here: it has no digit left at -5.5."""
    if approximate == "tanh" and backend == "reference":
        pytest.skip("the textbook formula cancels; the kernels use a sigmoid")
    x = torch.linspace(-9.0, -3.0, 1000).to(dtype)
    bias = torch.zeros(1000, dtype=dtype, device=device)
    got = fused_add_gelu(x.to(device), bias, approximate, backend=backend).cpu().double()
    y = x.double()
    if approximate == "none":
        want = 0.5 * y * torch.special.erfc(-y / math.sqrt(2))
    else:
        want = y * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    relative = 3e-5 + 0.51 * rounding_factor(backend, dtype) * torch.finfo(dtype).eps
    torch.testing.assert_close(got, want, rtol=relative, atol=spacing)


@pytest.mark.parametrize("shape", [(7, 41), (1, 1000)])
def test_triton_splits_large_tensors(monkeypatch, shape):
    kernel = importlib.import_module("gossamer.kernels.fused_add_gelu")
    monkeypatch.setattr(kernel, "MAX_ELEMENTS", 100)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, bias = torch.randn(shape, device=device), torch.randn(shape[-1], device=device)
    args = (x, bias, "none")
    SPEC.check(fused_add_gelu(*args, backend="triton"), args)

"""What bias_act means, and the activations that ops know by name."""

import importlib

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import bias_act
from gossamer.ops.activations import ACTIVATIONS
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, rounding_factor, runs

RUNS = runs("bias_act")


def _inputs(shape, make):
    yield make(*shape), make(shape[-1]), "mish"
    yield make(*shape), None, "gelu"


def _magnitude(x, bias, activation):
    terms = x.abs() if bias is None else x.abs() + bias.abs()
    return (terms * terms.clamp_min(1),)


SPEC = OpSpec(
    op="bias_act",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    bad_calls=[
        (([1.0], None, "gelu"), TypeError, "bias_act: x is list; must be a torch.Tensor"),
        (
            (torch.zeros(2, 4).double(), None, "gelu"),
            TypeError,
            "bias_act: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4).half(), "gelu"),
            TypeError,
            "bias_act: bias has dtype float16; must be float32, the dtype of x",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4, device="meta"), "gelu"),
            ValueError,
            "bias_act: bias is on meta; must be on cpu, the device of x",
        ),
        (
            (torch.tensor(1.0), None, "gelu"),
            ValueError,
            "bias_act: x has 0 dimensions; must have at least 1",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(5), "gelu"),
            ValueError,
            "bias_act: bias has shape [5]; must be [4], the last dimension of x",
        ),
        (
            (torch.zeros(2, 4), torch.zeros(4), "tanh"),
            ValueError,
            "bias_act: activation is 'tanh'; must be one of "
            "gelu, gelu_tanh, silu, swish, mish, relu2, relu",
        ),
    ],
)


def test_every_name_is_what_torch_calls_it():
    x, bias = torch.randn(3, 64), torch.randn(64)
    torch_names = {
        "gelu": F.gelu,
        "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
        "silu": F.silu,
        "swish": F.silu,
        "mish": F.mish,
        "relu2": lambda y: F.relu(y) ** 2,
        "relu": F.relu,
    }
    assert list(torch_names) == list(ACTIVATIONS)
    for name, function in torch_names.items():
        torch.testing.assert_close(bias_act(x, bias, name), function(x + bias))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_every_activation(op, backend, device, dtype):
    """With and without a bias; packs and single elements; a slice of a wider tensor."""
    for activation in ACTIVATIONS:
        for width in (40, 33):
            x = torch.randn(3, width + 8, device=device).to(dtype)[:, :width]
            bias = torch.randn(width, device=device).to(dtype)
            for args in ((x, bias, activation), (x, None, activation)):
                got = bias_act(*args, backend=backend)
                SPEC.check(got, args, rounding_factor(backend, dtype))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, dtype):
    """Infinity and NaN as torch has them, nothing overflows on the way, tails keep their digits."""
    inf, nan = float("inf"), float("nan")
    some = [inf, -inf, nan, 6e4, -6e4, -200.0, -90.0, -20.0, -14.0, -5.0, 1e-40, -0.0, 19.0, 88.0]
    x = torch.tensor(some).to(dtype)
    unit = torch.finfo(dtype).eps
    tiny = max(torch.finfo(dtype).smallest_normal, 1e-35)  # silu(-90) is subnormal or 0
    for name, function in ACTIVATIONS.items():
        got = bias_act(x.to(device), None, name, backend=backend).cpu()
        want = function(x.double()).to(dtype)
        relative = 1e-5 + rounding_factor(backend, dtype) * unit
        if name == "gelu_tanh" and backend == "reference":
            relative = 1.0  # the textbook formula cancels in the tail; the kernels use a sigmoid
        torch.testing.assert_close(got, want, equal_nan=True, rtol=relative, atol=tiny)


@pytest.mark.parametrize("shape", [(7, 41), (1, 1000)])
def test_triton_splits_large_tensors(monkeypatch, shape):
    kernel = importlib.import_module("gossamer.kernels.bias_act")
    monkeypatch.setattr(kernel, "MAX_ELEMENTS", 100)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, bias = torch.randn(shape, device=device), torch.randn(shape[-1], device=device)
    for args in ((x, bias, "silu"), (x, None, "silu")):
        SPEC.check(bias_act(*args, backend="triton"), args)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_many_elements_on_the_gpu(backend):
    """Sizes on both sides of where a thread takes more than one pack, and rows of odd width."""
    for dtype in FLOAT_DTYPES:
        for shape in ((16, 4096), (260, 4096), (2100, 4096), (700, 1001), (3, 1_100_000)):
            x = torch.randn(shape, device="cuda").to(dtype)
            bias = torch.randn(shape[-1], device="cuda").to(dtype)
            for args in ((x, bias, "relu2"), (x, None, "silu")):
                SPEC.check(bias_act(*args, backend=backend), args)

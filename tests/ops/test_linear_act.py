"""What linear_act means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import linear_act
from gossamer.ops.activations import ACTIVATIONS
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops import gemm
from tests.ops.spec import LAYOUTS, OpSpec, rounding_factor, runs

RUNS = runs("linear_act")
MOST_COLUMNS = 24
NAMES = "gelu, gelu_tanh, silu, swish, mish, relu2, relu"


def _inputs(shape, make):
    """Weights lie as they must: rows may be apart, no more."""
    k = shape[-1]
    n = min(k, MOST_COLUMNS)
    weight = make(n, k)
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    yield make(*shape), weight, make(n), "gelu"
    yield make(*shape), weight, None, "silu"


def _magnitude(x, weight, bias, activation):
    terms = x.abs() @ weight.abs().T
    return (terms if bias is None else terms + bias.abs(),)


def _args(x=(3, 8), weight=(5, 8), bias=(5,), activation="gelu"):
    made = (torch.zeros(a) if isinstance(a, tuple) else a for a in (x, weight, bias))
    return *made, activation


SPEC = OpSpec(
    op="linear_act",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    widths=(1, 2_100),  # the interpreter takes a second for 10,000
    bad_calls=[
        (_args(x=[1.0]), TypeError, "linear_act: x is list; must be a torch.Tensor"),
        (_args(weight=None), TypeError, "linear_act: weight is NoneType; must be a torch.Tensor"),
        (
            _args(x=torch.zeros(3, 8).double()),
            TypeError,
            "linear_act: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            _args(weight=torch.zeros(5, 8).half()),
            TypeError,
            "linear_act: weight has dtype float16; must be float32, the dtype of x",
        ),
        (
            _args(weight=torch.zeros(5, 8, device="meta")),
            ValueError,
            "linear_act: weight is on meta; must be on cpu, the device of x",
        ),
        (_args(x=()), ValueError, "linear_act: x has 0 dimensions; must have at least 1"),
        (
            _args(x=(3, 0)),
            ValueError,
            "linear_act: the last dimension of x is 0; must be at least 1",
        ),
        *(
            (
                _args(weight=shape),
                ValueError,
                f"linear_act: weight has shape {list(shape)}; must be [n, 8], k as in x",
            )
            for shape in ((8,), (8, 5), (5, 1, 8))
        ),
        (
            _args(weight=torch.zeros(8, 5).T),
            ValueError,
            "linear_act: weight has strides [1, 5]; rows must be contiguous",
        ),
        (
            _args(bias=(8,)),
            ValueError,
            "linear_act: bias has shape [8]; must be [5], one for each row of weight",
        ),
        (
            _args(activation="tanh"),
            ValueError,
            f"linear_act: activation is 'tanh'; must be one of {NAMES}",
        ),
    ],
)


NEAR = {"rtol": 1e-5, "atol": 1e-5}  # 64 terms, in another order


def test_is_torch_linear_and_activation():
    x, weight, bias = torch.randn(2, 5, 64), torch.randn(24, 64), torch.randn(24)
    product = F.linear(x, weight, bias)
    torch.testing.assert_close(linear_act(x, weight, bias), F.gelu(product), **NEAR)
    torch.testing.assert_close(linear_act(x, weight, bias, "silu"), F.silu(product), **NEAR)
    torch.testing.assert_close(linear_act(x, weight, bias, "swish"), F.silu(product), **NEAR)
    torch.testing.assert_close(linear_act(x, weight, bias, "relu2"), F.relu(product) ** 2, **NEAR)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_activations(op, backend, device, dtype):
    """All of them, over the whole range of their arguments."""
    x = torch.linspace(-30, 30, 15 * 8, device=device).view(15, 8).to(dtype)
    weight = torch.eye(8, device=device).to(dtype)
    for name in ACTIVATIONS:
        args = (x, weight, None, name)
        SPEC.check(linear_act(*args, backend=backend), args, rounding_factor(backend, dtype))


@pytest.mark.parametrize("rows", [17, 65])
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_many_rows(op, backend, device, rows):
    """More than the CPU kernel has, and more than a tile; columns of a part of one."""
    interpreted = backend == "triton" and device == "cpu"  # slow
    for dtype in FLOAT_DTYPES:
        for n, k in ((40, 24),) if interpreted else ((1, 1), (40, 24), (70, 33)):
            x, weight = gemm.random((rows, k), (n, k), dtype=dtype, device=device)
            gemm.check("linear_act", (x, weight, x.new_ones(n), "gelu"), backend)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [(192, 6144, 8), (193, 6152, 72), (256, 8192, 64), (1000, 4096, 1000), (4097, 1032, 520),
     (1024, 3072, 8200), (4000, 3000, 8200)],
    ids=str,
)  # fmt: skip
def test_tiles_of_the_cuda_kernel(dtype, shape):
    """Edges of all kinds, and steps along k that are not whole.

    The first four have tiles of 128 x 128, two of 128 x 192, the last one halves of 256 x 192.
    """
    m, n, k = shape
    x, weight, bias = gemm.random((m, k), (n, k), (n,), dtype=dtype, device="cuda")
    for name in ACTIVATIONS:
        args = (x, weight, bias, name)
        SPEC.check(linear_act(*args, backend="cuda"), args)
    apart = torch.full((m, k + 24), float("nan"), dtype=dtype, device="cuda")
    apart[:, :k] = x
    args = (apart[:, :k], weight, None, "gelu")  # rows that lie apart
    SPEC.check(linear_act(*args, backend="cuda"), args)
    args = (x.T.contiguous().T, weight, None, "gelu")
    SPEC.check(linear_act(*args, backend="cuda"), args)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_rows_by_the_cuda_kernel(dtype):
    """As many as a tile has and one more; k shared by 1, 2 and 4 CTAs; edges of all kinds."""
    for m, n, k in (
        *((1, 24, 4096), (2, 4096, 1024), (7, 100, 8200), (8, 1, 520), (9, 5000, 72), (16, 64, 8)),
        *((17, 9000, 264), (31, 65, 4104), (32, 1032, 1000), (33, 2050, 136), (64, 20_000, 40)),
        *((3, 18_000, 72), (16, 9000, 40), (64, 700, 3000), (65, 700, 3000)),
    ):
        x, weight, bias = gemm.random((m, k), (n, k), (n,), dtype=dtype, device="cuda")
        for name in ACTIVATIONS:
            args = (x, weight, bias, name)
            SPEC.check(linear_act(*args, backend="cuda"), args)
        apart = (LAYOUTS["sliced_rows"](x), LAYOUTS["sliced_rows"](weight), None, "gelu")
        SPEC.check(linear_act(*apart, backend="cuda"), apart)
        first = linear_act(x, weight, bias, "silu", backend="cuda")
        assert torch.equal(
            linear_act(x.T.contiguous().T, weight, bias, "silu", backend="cuda"), first
        )

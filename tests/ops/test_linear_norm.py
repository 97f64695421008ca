"""What linear_norm means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import linear_norm
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.gemm import check, random
from tests.ops.spec import LAYOUTS, runs

RUNS = runs("linear_norm")


def _args(
    x=(3, 8),
    weight=(5, 8),
    residual=(3, 5),
    scale=(5,),
    bias=(5,),
    shift=(5,),
    norm="rms",
    eps=1e-6,
):
    tensors = (x, weight, residual, scale, bias, shift)
    return *(torch.zeros(a) if isinstance(a, tuple) else a for a in tensors), norm, eps


BAD_CALLS = [
    (_args(x=None), TypeError, "linear_norm: x is NoneType; must be a torch.Tensor"),
    (_args(x=(3, 0)), ValueError, "linear_norm: the last dimension of x is 0; must be at least 1"),
    (
        _args(weight=(5, 7)),
        ValueError,
        "linear_norm: weight has shape [5, 7]; must be [n, 8], k as in x",
    ),
    (
        _args(weight=(0, 8), residual=(3, 0), scale=(0,), bias=None, shift=None),
        ValueError,
        "linear_norm: weight has 0 rows; must have 1 to 65536",
    ),
    (
        _args(residual=(5,)),
        ValueError,
        "linear_norm: residual has shape [5]; must be [3, 5], that of x @ weight.T",
    ),
    (
        _args(scale=(8,)),
        ValueError,
        "linear_norm: norm_weight has shape [8]; must be [5], one for each row of weight",
    ),
    (
        _args(bias=(8,)),
        ValueError,
        "linear_norm: bias has shape [8]; must be [5], one for each row of weight",
    ),
    (
        _args(shift=torch.zeros(5).half()),
        TypeError,
        "linear_norm: norm_bias has dtype float16; must be float32, the dtype of x",
    ),
    (_args(norm="batch"), ValueError, "linear_norm: norm is 'batch'; must be one of rms, layer"),
    (_args(eps=-1.0), ValueError, "linear_norm: eps is -1.0; must be finite and >= 0"),
    (_args(eps=float("nan")), ValueError, "linear_norm: eps is nan; must be finite and >= 0"),
]


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_is_torch_one_after_the_other(norm):
    x, weight, residual = random((2, 5, 64), (24, 64), (2, 5, 24), dtype=torch.float32)
    scale, bias, shift = torch.randn(3, 24)
    total = F.linear(x, weight, bias) + residual
    want = (
        F.rms_norm(total, (24,), scale, 1e-5) + shift
        if norm == "rms"
        else F.layer_norm(total, (24,), scale, shift, 1e-5)
    )
    got = linear_norm(x, weight, residual, scale, bias, shift, norm, 1e-5)
    torch.testing.assert_close(got, (want, total))


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("rows", [0, 5, 17])
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device, rows, norm):
    interpreted = backend == "triton" and device == "cpu"
    for dtype in FLOAT_DTYPES:
        for n, k in ((33, 40),) if interpreted else ((33, 40), (1, 1), (70, 9)):
            shapes = ((rows, k), (n, k), (rows, n), (n,), (n,), (n,))
            args = random(*shapes, dtype=dtype, device=device)
            check("linear_norm", (*args, norm, 1e-2), backend)
            check("linear_norm", (*args[:4], None, None, norm, 1e-2), backend)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_wide_rows(op, backend, device, norm):
    """More columns than registers hold, or than a partial sum has."""
    args = random((2, 8), (8_200, 8), (2, 8_200), (8_200,), dtype=torch.float32, device=device)
    check("linear_norm", (*args, None, args[3], norm, 1e-5), backend)


@pytest.mark.parametrize("layout", ["misaligned", "sliced_rows", "transposed", "expanded"])
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_layouts(op, backend, device, layout):
    x, weight, residual, scale = random(
        (5, 40), (24, 40), (5, 24), (24,), dtype=torch.float16, device=device
    )
    change = LAYOUTS[layout]
    weight = LAYOUTS[layout if layout in ("misaligned", "sliced_rows") else "misaligned"](weight)
    args = (change(x), weight, change(residual), change(scale), None, None, "rms", 1e-5)
    check("linear_norm", args, backend)

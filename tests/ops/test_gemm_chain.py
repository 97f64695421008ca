"""What gemm_chain means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import gemm_chain
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.gemm import check, random
from tests.ops.spec import runs


def _args(x=(3, 8), w1=(6, 8), w2=(5, 6), b1=(6,), b2=(5,), last="gelu"):
    made = (torch.zeros(a) if isinstance(a, tuple) else a for a in (x, w1, w2, b1, b2))
    return *made, last


BAD_CALLS = [
    (_args(x=None), TypeError, "gemm_chain: x is NoneType; must be a torch.Tensor"),
    (_args(x=(3, 0)), ValueError, "gemm_chain: the last dimension of x is 0; must be at least 1"),
    (_args(w1=(6, 7)), ValueError, "gemm_chain: w1 has shape [6, 7]; must be [n, 8], k as in x"),
    (
        _args(w1=torch.zeros(6, 8).half()),
        TypeError,
        "gemm_chain: w1 has dtype float16; must be float32, the dtype of x",
    ),
    (_args(w1=(0, 8), b1=(0,)), ValueError, "gemm_chain: w1 has 0 rows; must have at least 1"),
    (
        _args(w2=(5, 8)),
        ValueError,
        "gemm_chain: w2 has shape [5, 8]; must be [n, 6], k as in the rows of w1",
    ),
    (
        _args(w2=torch.zeros(6, 5).T),
        ValueError,
        "gemm_chain: w2 has strides [1, 5]; rows must be contiguous",
    ),
    (
        _args(b1=(5,)),
        ValueError,
        "gemm_chain: b1 has shape [5]; must be [6], one for each row of w1",
    ),
    (
        _args(b2=(6,)),
        ValueError,
        "gemm_chain: b2 has shape [6]; must be [5], one for each row of w2",
    ),
    (
        _args(last="tanh"),
        ValueError,
        "gemm_chain: activation is 'tanh'; must be one of "
        "gelu, gelu_tanh, silu, swish, mish, relu2, relu",
    ),
]


def test_is_two_layers_of_torch():
    x, w1, w2, b1, b2 = random((2, 5, 64), (96, 64), (40, 96), (96,), (40,), dtype=torch.float32)
    want = F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)
    torch.testing.assert_close(gemm_chain(x, w1, w2, b1, b2), want)


@pytest.mark.parametrize("rows", [0, 5, 17])
@pytest.mark.parametrize(("op", "backend", "device"), runs("gemm_chain"))
def test_agrees_with_the_oracle(op, backend, device, rows):
    for dtype in FLOAT_DTYPES:
        for k, hidden, n, name in ((40, 33, 70, "gelu"), (1, 1, 1, "relu2")):
            shapes = ((rows, k), (hidden, k), (n, hidden), (hidden,), (n,))
            args = random(*shapes, dtype=dtype, device=device)
            check("gemm_chain", (*args, name), backend)
            check("gemm_chain", (*args[:3], None, None, name), backend)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 33, 64, 512])
def test_sizes_of_a_model_on_the_gpu(rows):
    for dtype in FLOAT_DTYPES:
        shapes = ((rows, 1024), (4096, 1024), (1024, 4096), (4096,), (1024,))
        args = (*random(*shapes, dtype=dtype, device="cuda"), "gelu")
        for backend in ("triton", "cuda"):
            check("gemm_chain", args, backend)
            first = gemm_chain(*args, backend=backend)
            assert torch.equal(gemm_chain(*args, backend=backend), first)

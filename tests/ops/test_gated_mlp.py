"""What gated_mlp means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import gated_mlp
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.gemm import check, random
from tests.ops.spec import LAYOUTS, poison, runs


def _args(x=(3, 8), gate_up=(12, 8), down=(5, 6), gate_up_bias=(12,), down_bias=(5,), last="silu"):
    tensors = (x, gate_up, down, gate_up_bias, down_bias)
    return *(torch.zeros(a) if isinstance(a, tuple) else a for a in tensors), last


BAD_CALLS = [
    (_args(x=None), TypeError, "gated_mlp: x is NoneType; must be a torch.Tensor"),
    (
        _args(x=torch.zeros(3, 8).double()),
        TypeError,
        "gated_mlp: x has dtype float64; must be one of float32, float16, bfloat16",
    ),
    (_args(x=(3, 0)), ValueError, "gated_mlp: the last dimension of x is 0; must be at least 1"),
    (
        _args(gate_up=(12, 7)),
        ValueError,
        "gated_mlp: gate_up has shape [12, 7]; must be [n, 8], k as in x",
    ),
    (
        _args(gate_up=torch.zeros(8, 12).T),
        ValueError,
        "gated_mlp: gate_up has strides [1, 8]; rows must be contiguous".replace("8]", "12]"),
    ),
    (
        _args(gate_up=(11, 8)),
        ValueError,
        "gated_mlp: gate_up has 11 rows; must be an even number, at least 2",
    ),
    (
        _args(gate_up=(0, 8)),
        ValueError,
        "gated_mlp: gate_up has 0 rows; must be an even number, at least 2",
    ),
    (
        _args(down=(5, 12)),
        ValueError,
        "gated_mlp: down has shape [5, 12]; must be [n, 6], k as in half the rows of gate_up",
    ),
    (
        _args(down=torch.zeros(5, 6).half()),
        TypeError,
        "gated_mlp: down has dtype float16; must be float32, the dtype of x",
    ),
    (
        _args(gate_up_bias=(6,)),
        ValueError,
        "gated_mlp: gate_up_bias has shape [6]; must be [12], one for each row of gate_up",
    ),
    (
        _args(down_bias=(6,)),
        ValueError,
        "gated_mlp: down_bias has shape [6]; must be [5], one for each row of down",
    ),
    (
        _args(last="relu"),
        ValueError,
        "gated_mlp: activation is 'relu'; must be one of silu, gelu, gelu_tanh",
    ),
]


def test_is_the_mlp_of_llama():
    x, gate_up, down = random((2, 5, 64), (96, 64), (40, 48), dtype=torch.float32)
    gate, up = gate_up.chunk(2)
    want = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
    torch.testing.assert_close(gated_mlp(x, gate_up, down), want)


@pytest.mark.parametrize("rows", [0, 5, 17])
@pytest.mark.parametrize(("op", "backend", "device"), runs("gated_mlp"))
def test_agrees_with_the_oracle(op, backend, device, rows):
    """Few rows and many (float32 goes the way of many in Triton), sizes that no tile divides."""
    for dtype in FLOAT_DTYPES:
        for k, hidden, n, name in (
            (40, 33, 70, "silu"),
            (130, 24, 8, "gelu"),
            (1, 1, 1, "gelu_tanh"),
        ):
            shapes = ((rows, k), (2 * hidden, k), (n, hidden), (2 * hidden,), (n,))
            args = random(*shapes, dtype=dtype, device=device)
            check("gated_mlp", (*args, name), backend)
            check("gated_mlp", (*args[:3], None, None, name), backend)


@pytest.mark.parametrize("layout", ["misaligned", "sliced_rows", "transposed", "expanded"])
@pytest.mark.parametrize(("op", "backend", "device"), runs("gated_mlp"))
def test_layouts(op, backend, device, layout):
    x, gate_up, down = random((5, 40), (48, 40), (32, 24), dtype=torch.float16, device=device)
    weights = layout if layout in ("misaligned", "sliced_rows") else "misaligned"
    args = (LAYOUTS[layout](x), LAYOUTS[weights](gate_up), LAYOUTS[weights](down))
    check("gated_mlp", (*args, None, None, "silu"), backend)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("rows", [1, 16, 33, 64, 65, 300])
def test_sizes_of_a_model_on_the_gpu(rows, backend):
    for dtype in FLOAT_DTYPES:
        shapes = ((rows, 1024), (2 * 3000, 1024), (1032, 3000))
        args = random(*shapes, dtype=dtype, device="cuda")
        check("gated_mlp", (*args, None, None, "silu"), backend)
        first = gated_mlp(*args, backend=backend)
        for _ in range(5):  # parts are added up in the same order
            assert torch.equal(gated_mlp(*args, backend=backend), first)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_rows_on_the_gpu(dtype):
    """Tiles that are not whole in any direction, k shared by 1 to 4 CTAs, tiles by turns."""
    for rows, k, hidden, n, name in (
        (1, 8, 8, 1, "silu"),
        (3, 4096, 40, 24, "gelu"),
        (8, 136, 1000, 8200, "gelu_tanh"),
        (9, 1160, 72, 65, "silu"),
        (16, 2048, 4096, 512, "silu"),
        (21, 520, 8, 130, "gelu"),
        (32, 72, 136, 20_000, "silu"),
        (47, 4000, 264, 33, "gelu_tanh"),
        (5, 72, 8456, 40, "silu"),
        (64, 136, 8456, 72, "gelu"),
        (64, 1032, 2056, 1000, "silu"),
        (64, 8200, 520, 100, "silu"),
    ):
        shapes = ((rows, k), (2 * hidden, k), (n, hidden), (2 * hidden,), (n,))
        args = random(*shapes, dtype=dtype, device="cuda")
        check("gated_mlp", (*args, name), "cuda")
        apart = (*map(LAYOUTS["sliced_rows"], args[:3]), None, None, name)
        check("gated_mlp", apart, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_the_second_product_waits_for_the_first(rows):
    """It is launched before that one ends; other calls, of other sizes, come right behind."""
    shapes = ((6144, 1024), (1024, 3072))
    gate_up, down = random(*shapes, dtype=torch.bfloat16, device="cuda")
    inputs = [random((rows, 1024), dtype=torch.bfloat16, device="cuda")[0] for _ in range(20)]
    want = []
    for x in inputs:
        want.append(gated_mlp(x, gate_up, down, backend="cuda"))
        torch.cuda.synchronize()
    got = []
    for x in inputs:
        copy = torch.empty_like(x).copy_(x)  # by the kernel right before
        got.append(gated_mlp(copy, gate_up, down, backend="cuda"))
        gated_mlp(copy[:1], gate_up[:2048], down[:, :1024], backend="cuda")
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("rows", "k", "hidden", "n"),
    [(192, 8, 3072, 24), (193, 72, 3080, 1), (257, 1000, 2056, 1032), (3999, 520, 1544, 130),
     (777, 136, 3000, 65), (2049, 4104, 8200, 264), (3001, 72, 1000, 4096)],
    ids=str,
)  # fmt: skip
def test_many_rows_on_the_gpu(dtype, rows, k, hidden, n):
    """Gate, up and activation by one kernel; tiles that are not whole in any direction.

    The first four have tiles of 128 x 64 results, the others of 128 x 96.
    """
    shapes = ((rows, k), (2 * hidden, k), (n, hidden), (2 * hidden,), (n,))
    args = random(*shapes, dtype=dtype, device="cuda")
    x, *weights = args
    for name in ("silu", "gelu", "gelu_tanh"):
        poison([(rows, hidden), (rows, n)], dtype, "cuda")
        check("gated_mlp", (*args, name), "cuda")
    for layout in ("sliced_rows", "misaligned", "transposed", "expanded"):
        check("gated_mlp", (LAYOUTS[layout](x), *weights, "silu"), "cuda")
    apart = (*map(LAYOUTS["sliced_rows"], args[:3]), None, None, "silu")
    check("gated_mlp", apart, "cuda")
    biases = (weights[2].repeat_interleave(2)[::2], weights[3].repeat_interleave(2)[::2])
    got = gated_mlp(x[:, None], *weights[:2], *biases, backend="cuda")
    assert torch.equal(got, gated_mlp(x, *weights, backend="cuda")[:, None])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [4, 300])
def test_replays_in_a_cuda_graph(rows):
    shapes = ((rows, 512), (4096, 512), (512, 2048))
    x, gate_up, down = random(*shapes, dtype=torch.bfloat16, device="cuda")
    gated_mlp(x, gate_up, down, backend="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gated_mlp(x, gate_up, down, backend="cuda")
    for _ in range(3):
        x.copy_(torch.randn(rows, 512, device="cuda"))
        graph.replay()
        assert torch.equal(got, gated_mlp(x, gate_up, down, backend="cuda"))

"""What quantize_fp8 means."""

import pytest
import torch

from gossamer.ops import OPS, quantize_fp8
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.quantize_fp8 import GRANULARITIES, expanded
from tests.ops.spec import LAYOUTS, runs

RUNS = runs("quantize_fp8")
BAD_CALLS = [
    ((None, "row"), TypeError, "quantize_fp8: x is NoneType; must be a torch.Tensor"),
    (
        (torch.zeros(()), "row"),
        ValueError,
        "quantize_fp8: x has 0 dimensions; must have at least 1",
    ),
    (
        (torch.zeros(3, 4), "column"),
        ValueError,
        "quantize_fp8: granularity is 'column'; must be one of tensor, row, group, block",
    ),
    (
        (torch.zeros(2, 3, 4), "block"),
        ValueError,
        "quantize_fp8: x has 3 dimensions; must have 2 for granularity 'block'",
    ),
]


@pytest.mark.parametrize(
    ("granularity", "shape"),
    [("tensor", (1,)), ("row", (300, 1)), ("group", (300, 3)), ("block", (3, 3))],
)
def test_codes_times_scales_are_close(granularity, shape):
    x = torch.randn(300, 257) * torch.rand(300, 1)
    codes, scale = quantize_fp8(x, granularity)
    assert codes.dtype is torch.float8_e4m3fn
    assert scale.shape == shape
    back = codes.float() * expanded(scale, x, granularity)
    # 3 bits behind the first one, and steps of 2^-9 for the smallest.
    allowed = x.abs() / 16 * 1.001 + expanded(scale, x, granularity) * 2**-10
    assert ((back - x).abs() <= allowed).all()


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_every_backend_gives_the_same_bits(op, backend, device, dtype, granularity):
    shapes = [(0, 8), (1, 1), (3, 257), (2, 8_500)]
    shapes += [(130, 130)] if granularity == "block" else [(2, 3, 128)]
    for shape in shapes:
        for layout in ("misaligned", "transposed"):
            x = LAYOUTS[layout](torch.randn(shape, device=device).to(dtype))
            codes, scale = quantize_fp8(x, granularity, backend=backend)
            want, want_scale = OPS[op].reference(x.cpu(), granularity)
            assert codes.is_contiguous()
            assert torch.equal(scale.cpu(), want_scale)
            assert torch.equal(codes.view(torch.uint8).cpu(), want.view(torch.uint8))


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_all_codes_and_what_lies_between(op, backend, device):
    """Every float8, the middles between two, and neighbours of those, in steps of a float32."""
    codes = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    below, above = (torch.nextafter(middles, torch.tensor(t)) for t in (0.0, 1e9))
    x = torch.cat([codes, middles, below, above])
    x = torch.cat([x, -x]).to(device)  # the largest is 448: a scale of 1
    got, scale = quantize_fp8(x, "tensor", backend=backend)
    assert scale.item() == 1.0
    assert torch.equal(got.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize(
    ("granularity", "place"), [("row", [2, 0]), ("group", [2, 1]), ("block", [0, 1])]
)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_refuses_what_is_not_finite_and_says_where(op, backend, device, granularity, place):
    for bad in (float("nan"), float("inf")):
        x = torch.ones(3, 140, device=device)
        x[2, 130] = bad
        with pytest.raises(ValueError, match="quantize_fp8: the scale at") as raised:
            quantize_fp8(x, granularity, backend=backend)
        assert str(raised.value).endswith(f"at {place} is not finite; x has NaN or infinity there")


@pytest.mark.gpu
def test_does_not_look_while_a_graph_is_captured():
    x = torch.ones(4, 256, device="cuda")
    quantize_fp8(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codes, _ = quantize_fp8(x)
    x.fill_(2.0)
    graph.replay()
    assert (codes.float() == 448).all()

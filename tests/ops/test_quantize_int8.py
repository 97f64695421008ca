"""What quantize_int8 means."""

import pytest
import torch

from gossamer.ops import OPS, quantize_int8
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import LAYOUTS, SHAPES, runs

BAD_CALLS = [
    ((None,), TypeError, "quantize_int8: x is NoneType; must be a torch.Tensor"),
    (
        (torch.zeros(3, 4).double(),),
        TypeError,
        "quantize_int8: x has dtype float64; must be one of float32, float16, bfloat16",
    ),
    (
        (torch.zeros(()),),
        ValueError,
        "quantize_int8: x has 0 dimensions; must have at least 1",
    ),
]


def test_codes_times_scale_are_close():
    x = torch.randn(7, 300)
    codes, scale = quantize_int8(x)
    assert codes.dtype is torch.int8
    assert scale.shape == (7, 1)
    assert ((codes * scale - x).abs() <= scale * 0.5001).all()
    assert (codes.abs().amax(-1) == 127).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), runs("quantize_int8"))
def test_every_backend_gives_the_same_bits(op, backend, device, dtype, layout):
    for shape in SHAPES:
        x = LAYOUTS[layout](torch.randn(shape, device=device).to(dtype))
        want = OPS[op].reference(x.cpu())
        for got, wanted in zip(quantize_int8(x, backend=backend), want, strict=True):
            assert got.is_contiguous()
            assert torch.equal(got.cpu(), wanted)


@pytest.mark.parametrize(("op", "backend", "device"), runs("quantize_int8"))
def test_rows_of_zeros_and_of_extremes(op, backend, device):
    x = torch.tensor([[0.0, 0.0], [3e38, -3e38], [1e-30, 0.0]], device=device)
    codes, scale = quantize_int8(x, backend=backend)
    assert codes.tolist() == [[0, 0], [127, -127], [127, 0]]
    assert scale[0].item() == 1.0


def test_codes_of_rows_that_are_tiny_or_not_finite_are_the_reference_s():
    """Scales that are subnormal or not finite; the op itself does not look at them."""
    x = torch.randn(6, 45) * torch.tensor([1e-45, 1e-40, 3e-38, 1.0, 1.0, 1.0])[:, None]
    x[3, 5], x[4, 44], x[5, 0] = float("inf"), float("nan"), float("-inf")
    op = torch.ops.gossamer.quantize_int8
    (codes, scale), (want, want_scale) = op(x), op.reference(x)
    assert torch.equal(codes, want)
    torch.testing.assert_close(scale, want_scale, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("op", "backend", "device"), runs("quantize_int8"))
def test_refuses_what_is_not_finite_and_says_where(op, backend, device, bad):
    x = torch.ones(2, 3, 5, device=device)
    x[1, 2, 4] = bad
    message = r"quantize_int8: the scale at \[1, 2, 0\] is not finite; x has NaN or infinity there"
    with pytest.raises(ValueError, match=message):
        quantize_int8(x, backend=backend)

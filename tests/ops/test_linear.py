"""What linear means."""

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import OPS, linear
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import LAYOUTS, OpSpec, runs

RUNS = runs("linear")
MOST_COLUMNS = 29  # of the grid's weights: some blocks of columns and a rest


def _inputs(shape, make):
    """All leading dimensions are rows. Weights lie as they must: rows may be apart, no more."""
    rows, k = torch.Size(shape[:-1]).numel(), shape[-1]
    n = min(k, MOST_COLUMNS)
    weight = make(n, k)
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    yield make(rows, k), weight, make(n)
    yield make(rows, k), weight, None


def _magnitude(x, weight, bias=None):
    terms = x.abs() @ weight.abs().T
    return (terms if bias is None else terms + bias.abs(),)


def _args(x=(3, 8), weight=(5, 8), bias=(5,)):
    return tuple(torch.zeros(a) if isinstance(a, tuple) else a for a in (x, weight, bias))


SPEC = OpSpec(
    op="linear",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    widths=(1, 1 << 62),
    bad_calls=[
        (_args(x=[1.0]), TypeError, "linear: x is list; must be a torch.Tensor"),
        (_args(weight=None), TypeError, "linear: weight is NoneType; must be a torch.Tensor"),
        (
            _args(x=torch.zeros(3, 8).double()),
            TypeError,
            "linear: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            _args(weight=torch.zeros(5, 8).half()),
            TypeError,
            "linear: weight has dtype float16; must be float32, the dtype of x",
        ),
        (
            _args(bias=torch.zeros(5).bfloat16()),
            TypeError,
            "linear: bias has dtype bfloat16; must be float32, the dtype of x",
        ),
        (
            _args(weight=torch.zeros(5, 8, device="meta")),
            ValueError,
            "linear: weight is on meta; must be on cpu, the device of x",
        ),
        *(
            (
                _args(x=shape),
                ValueError,
                f"linear: x has shape {list(shape)}; must be [rows, k], k at least 1",
            )
            for shape in ((), (8,), (1, 3, 8), (3, 0))
        ),
        *(
            (
                _args(weight=shape),
                ValueError,
                f"linear: weight has shape {list(shape)}; must be [n, 8], k as in x",
            )
            for shape in ((8,), (8, 5), (5, 1, 8))
        ),
        (
            _args(weight=torch.zeros(8, 5).T),
            ValueError,
            "linear: weight has strides [1, 5]; rows must be contiguous",
        ),
        *(
            (
                _args(bias=shape),
                ValueError,
                f"linear: bias has shape {list(shape)}; must be [5], one for each row of weight",
            )
            for shape in ((8,), (1,), (1, 5), ())
        ),
    ],
)


def _random(rows, n, k, dtype, device="cpu"):
    return tuple(torch.randn(size, device=device).to(dtype) for size in ((rows, k), (n, k), (n,)))


def test_is_torch_linear():
    x, weight, bias = _random(5, 24, 64, torch.float32)
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 33])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_rows(op, backend, device, dtype, rows):
    """As many as a block of the kernel has, more, fewer; columns around its widths too."""
    for n in (0, 1, 3, 8, 23, 24, 25, 50):
        for k in (1, 15, 32, 100):
            args = _random(rows, n, k, dtype, device)
            for some in (args, args[:2]):
                got = linear(*some, backend=backend)
                assert got.shape == (rows, n)
                assert got.is_contiguous()
                SPEC.check(got, some)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    """Of the sum: around vectors and cache lines, with a step of each kind."""
    for k in [*range(1, 140), 255, 257, 575, 576, 577, 1000, 4095, 8192]:
        args = _random(3, 10, k, dtype)
        SPEC.check(linear(*args, backend="cpu"), args)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 960, 576), (8, 576, 1536), (13, 3001, 577)], ids=str)
def test_sizes_of_models_on_the_cpu(dtype, shape):
    """Large enough for threads; also as slices of larger tensors, surrounded by NaN."""
    args = _random(*shape, dtype)
    want = linear(*args, backend="cpu")
    SPEC.check(want, args)
    assert torch.equal(linear(*map(LAYOUTS["sliced_rows"], args), backend="cpu"), want)
    assert torch.equal(linear(*map(LAYOUTS["misaligned"], args), backend="cpu"), want)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_a_row_is_the_same_alone_and_in_any_batch(dtype):
    """Bit by bit: a token must not depend on which others are decoded in the same step."""
    for n, k in ((61, 577), (1000, 96)):
        x, weight, bias = _random(40, n, k, dtype)
        alone = torch.cat([linear(row[None], weight, bias, backend="cpu") for row in x])
        for rows in range(1, 41):
            assert torch.equal(linear(x[:rows], weight, bias, backend="cpu"), alone[:rows])
        order = torch.randperm(40)
        assert torch.equal(linear(x[order], weight, bias, backend="cpu"), alone[order])


def test_threads_agree_with_one():
    """Columns are cut anywhere; each is added up in one order."""
    x, weight, bias = _random(3, 4001, 129, torch.float32)
    parts = [linear(x, weight[i : i + 7], bias[i : i + 7]) for i in range(0, 4001, 7)]
    assert torch.equal(linear(x, weight, bias), torch.cat(parts, dim=1))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_nan_and_infinity_stay_in_their_row_and_column(op, backend, device, dtype):
    for wrong in (float("nan"), float("inf")):
        x, weight, bias = _random(10, 30, 45, dtype, device)
        want = linear(x, weight, bias, backend=backend)
        x[4, 44], weight[7, 3], bias[9] = wrong, wrong, wrong
        got = linear(x, weight, bias, backend=backend)
        touched = torch.zeros(10, 30, dtype=torch.bool, device=device)
        touched[4], touched[:, 7], touched[:, 9] = True, True, True
        assert not got[touched].isfinite().any()
        torch.testing.assert_close(got[~touched], want[~touched])


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_sums_of_16_bits_are_in_float32_and_rounded_once(op, backend, device):
    """4096 + 600 halves is 4396; sums in float16 would stay at 4096, whose neighbour is 4100."""
    x = torch.full((1, 601), 0.5, device=device).half()
    x[0, 0] = 4096
    weight, bias = torch.ones(2, 601, device=device).half(), torch.ones(2, device=device).half()
    assert linear(x, weight, backend=backend).tolist() == [[4396.0, 4396.0]]
    # 4396 + 1 lies below the middle of 4396 and 4400; 4398 in the sum itself would be a tie.
    assert linear(x, weight, bias, backend=backend).tolist() == [[4396.0, 4396.0]]
    assert linear(x, weight, 3 * bias, backend=backend).tolist() == [[4400.0, 4400.0]]


@pytest.mark.gpu
def test_on_a_gpu_the_default_is_the_reference():
    args = _random(3, 24, 40, torch.float32, "cuda")
    assert torch.equal(linear(*args), linear(*args, backend="reference"))
    assert torch.equal(torch.ops.gossamer.linear(*args), linear(*args, backend="reference"))
    assert OPS["linear"].backends == ("reference", "cpu")

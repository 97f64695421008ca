"""What element_wise_mul_add means."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops import element_wise_mul_add
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import OpSpec, rounding_factor, runs


def _inputs(shape, make):
    row, column = (shape[-1],), (*shape[:-1], 1)
    yield make(*shape), make(*shape), make(*shape)
    yield make(*shape), make(*row), make(*column)
    yield make(*row), make(*shape), make(1)
    yield make(), make(*column), make(*row)
    yield make(3, *(1 for _ in shape)), make(*shape), make()


SPEC = OpSpec(
    op="element_wise_mul_add",
    inputs=_inputs,
    magnitude=lambda a, b, c: (a.abs() * b.abs() + c.abs(),),
    roundings=(1,),
    bad_calls=[
        (
            (torch.zeros(2), 2.0, torch.zeros(2)),
            TypeError,
            "element_wise_mul_add: b is float; must be a torch.Tensor",
        ),
        (
            (torch.zeros(2).int(), torch.zeros(2), torch.zeros(2)),
            TypeError,
            "element_wise_mul_add: a has dtype int32; must be one of float32, float16, bfloat16",
        ),
        (
            (torch.zeros(2), torch.zeros(2), torch.zeros(2).bfloat16()),
            TypeError,
            "element_wise_mul_add: c has dtype bfloat16; must be float32, the dtype of a",
        ),
        (
            (torch.zeros(2), torch.zeros(2), torch.zeros(2, device="meta")),
            ValueError,
            "element_wise_mul_add: c is on meta; must be on cpu, the device of a",
        ),
        (
            (torch.zeros(2, 3), torch.zeros(3), torch.zeros(2)),
            ValueError,
            "element_wise_mul_add: a has shape [2, 3], b [3], c [2]; must broadcast together",
        ),
    ],
)


@pytest.mark.parametrize(("op", "backend", "device"), runs("element_wise_mul_add"))
def test_rounds_once(op, backend, device):
    """A float16 product is kept in float32: rounding it first would give 0."""
    a = torch.tensor([1.0 + 2**-10], dtype=torch.float16)
    c = -(a.double() ** 2).to(torch.float16)
    want = a.double() ** 2 + c.double()
    assert want.item() != 0
    a, c = a.to(device), c.to(device)
    assert element_wise_mul_add(a, a, c, backend=backend).double().item() == want.item()


@st.composite
def broadcastable(draw):
    """Three shapes that broadcast together, and an order of dimensions to view them in."""
    full = draw(st.lists(st.integers(1, 5), max_size=6))
    shapes = []
    for _ in range(3):
        own = full[draw(st.integers(0, len(full))) :]
        shapes.append([n if draw(st.booleans()) else 1 for n in own])
    return shapes


@pytest.mark.parametrize(("op", "backend", "device"), runs("element_wise_mul_add"))
@settings(max_examples=60, deadline=None)
@given(shapes=broadcastable())
def test_any_broadcast(op, backend, device, shapes):
    # Transposed storage: strides in the reverse of the usual order.
    a, b, c = (
        torch.randn(s[::-1], device=device).permute(list(reversed(range(len(s))))) for s in shapes
    )
    torch.testing.assert_close(element_wise_mul_add(a, b, c, backend=backend), a * b + c)


@pytest.mark.parametrize(("op", "backend", "device"), runs("element_wise_mul_add"))
def test_more_dimensions_than_the_loop_has(op, backend, device):
    """Alternating broadcasts cannot be merged; beyond 8 dimensions the inputs are copied."""
    a = torch.randn([2, 1] * 6, device=device)
    b = torch.randn([1, 2] * 6, device=device)
    c = torch.randn([2] * 12, device=device).permute(*reversed(range(12)))
    torch.testing.assert_close(element_wise_mul_add(a, b, c, backend=backend), a * b + c)


@pytest.mark.parametrize(("op", "backend", "device"), runs("element_wise_mul_add"))
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_special_values(op, backend, device, dtype):
    """NaN, infinities, overflow to infinity and the smallest subnormal number."""
    inf, nan, big = float("inf"), float("nan"), torch.finfo(dtype).max
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    a = torch.tensor([1.0, inf, inf, nan, big, -big, tiny], dtype=dtype)
    b = torch.tensor([2.0, 2, 0, 1, 2, 2, 1], dtype=dtype)
    c = torch.tensor([-2.0, -inf, 1, 1, 0, 0, tiny], dtype=dtype)
    got = element_wise_mul_add(*(t.to(device) for t in (a, b, c)), backend=backend)
    want = torch.tensor([0.0, nan, nan, nan, inf, -inf, 2 * tiny], dtype=dtype)
    if rounding_factor(backend, dtype) > 1:  # Triton's interpreter also flushes subnormal bfloat16
        got, want = got[:-1], want[:-1]
    torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=0, atol=0)


SPLIT_SHAPES = [[(7, 41), (41,), (7, 1)], [(1000,), (), (1000,)], [(3, 5, 8)] * 3]


@pytest.mark.parametrize("shapes", SPLIT_SHAPES)
def test_triton_splits_large_tensors(monkeypatch, shapes):
    kernel = importlib.import_module("gossamer.kernels.element_wise_mul_add")
    monkeypatch.setattr(kernel, "MAX_ELEMENTS", 100)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args = tuple(torch.randn(s, device=device) for s in shapes)
    SPEC.check(element_wise_mul_add(*args, backend="triton"), args)


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("width", [1, 3, 15, 16, 17, 40])
def test_short_rows(rows, width):
    """The C++ loop copies inputs whose rows are too short to be worth a loop."""
    a, b, c = torch.randn(rows, width), torch.randn(width), torch.randn(rows, 1)
    SPEC.check(element_wise_mul_add(a, b, c, backend="cpu"), (a, b, c))

"""What linear_gguf and dequantize_gguf mean: what the gguf package makes of the same bytes."""

import numpy as np
import pytest
import torch

from gossamer.ops import dequantize_gguf, linear_gguf
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.gguf import TYPES
from tests.ops.gemm import rounding_of_digits
from tests.ops.spec import runs

gguf = pytest.importorskip("gguf")

RUNS = runs("linear_gguf")
# Where blocks have float16, which random bytes would make NaN.
SCALES = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q8_0": (0,), "q4_0": (0,), "q5_0": (0,)}


def random_rows(n, k, kind):
    """Blocks of any codes, with scales below 1."""
    block = TYPES[kind]
    if block.weights == 1:
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[kind]
        return torch.randn(n, k).to(dtype).view(torch.uint8)
    raw = torch.randint(0, 256, (n * k // block.weights, block.bytes), dtype=torch.uint8)
    for at in SCALES.get(kind, (0, 2)):
        raw[:, at : at + 2] = (torch.rand(len(raw), 1) / 8).half().view(torch.uint8)
    return raw.view(n, -1)


def meaning(rows, kind):
    """float64 [n, k]."""
    found = gguf.quants.dequantize(
        rows.contiguous().numpy(), gguf.GGMLQuantizationType[kind.upper()]
    )
    return torch.from_numpy(np.asarray(found, dtype=np.float64)).view(len(rows), -1)


def _args(x=(3, 64), weights=((5, 40),), types="q4_1", bias=None):
    x = torch.zeros(x) if isinstance(x, tuple) else x
    rows = [torch.zeros(w, dtype=torch.uint8) if isinstance(w, tuple) else w for w in weights]
    return x, rows, types, bias


OP = "linear_gguf"
BAD_CALLS = [
    (_args(x=None), TypeError, f"{OP}: x is NoneType; must be a torch.Tensor"),
    (
        _args(weights=()),
        ValueError,
        f"{OP}: types has 1 names and weights 0 tensors; must be one for each, at least 1",
    ),
    (
        _args(types="q4_1,q4_1"),
        ValueError,
        f"{OP}: types has 2 names and weights 1 tensors; must be one for each, at least 1",
    ),
    (
        _args(types="q3_k"),
        ValueError,
        f"{OP}: type is 'q3_k'; must be one of {', '.join(TYPES)}",
    ),
    (
        _args(weights=(torch.zeros(5, 40),)),
        TypeError,
        f"{OP}: weights[0] has dtype float32; must be uint8",
    ),
    (
        _args(weights=((5, 39),)),
        ValueError,
        f"{OP}: weights[0] has rows of 39 bytes; must be a multiple of 20, whole blocks of q4_1",
    ),
    (
        _args(weights=((5, 60),)),
        ValueError,
        f"{OP}: weights[0] has rows of 96 weights; must be 64, as in x",
    ),
    (
        _args(weights=((40,),)),
        ValueError,
        f"{OP}: weights[0] has shape [40]; must be [n, bytes]",
    ),
    (
        _args(weights=(torch.zeros(40, 5, dtype=torch.uint8).T,)),
        ValueError,
        f"{OP}: weights[0] has strides [1, 5]; rows must be contiguous",
    ),
    (
        _args(weights=(torch.zeros(5, 40, dtype=torch.uint8, device="meta"),)),
        ValueError,
        f"{OP}: weights[0] is on meta; must be on cpu, the device of x",
    ),
    (
        _args(bias=torch.zeros(4)),
        ValueError,
        f"{OP}: bias has shape [4]; must be [5], one for each row of weights",
    ),
]


@pytest.mark.parametrize("kind", TYPES)
def test_weights_are_those_of_the_gguf_package(kind):
    rows = random_rows(7, 512, kind)
    want = meaning(rows, kind)
    for backend in ("reference", "cpu"):
        got = dequantize_gguf(rows, kind, backend=backend)
        torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)
        assert torch.equal(dequantize_gguf(rows[::2], kind, backend=backend), got[::2])
        half = dequantize_gguf(rows, kind, torch.bfloat16, backend=backend)
        assert torch.equal(half, got.bfloat16())


def check(m, kinds, k, backend, device, dtype, bias):
    weights = [random_rows(n, k, kind) for n, kind in kinds]
    weight = torch.cat(
        [meaning(rows, kind) for rows, (_, kind) in zip(weights, kinds, strict=True)]
    )
    x = torch.randn(m, k).to(dtype)
    shift = torch.randn(len(weight)).to(dtype) if bias else None
    on = [rows.to(device) for rows in weights]
    bias_there = None if shift is None else shift.to(device)
    got = linear_gguf(x.to(device), on, [kind for _, kind in kinds], bias_there, backend=backend)
    want = x.double() @ weight.T + (0 if shift is None else shift.double())
    size = x.double().abs() @ weight.abs().T + 1
    # Many rows of 16 bits: each weight is rounded, and the sum before the bias is added.
    eps = torch.finfo(dtype).eps
    rounded = eps * (2 * size if m > 16 and backend == "cpu" else want.abs())
    if backend == "cpu" and m <= 16:
        rounded = rounded + rounding_of_digits(x, weight)
    assert got.dtype is dtype
    assert ((got.cpu().double() - want).abs() <= rounded + 2**-20 * size).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device):
    for kind in TYPES:
        k = 512 if TYPES[kind].weights == 256 else 96
        for m in (1, 2, 3, 4, 5, 16, 17):
            check(m, [(11, kind)], k, backend, device, torch.float32, bias=m % 2 == 0)
    mixed = [(40, "q4_k"), (9, "q6_k"), (5, "f16"), (17, "q5_0")]  # as files mix them
    digits = [(9, "q4_1"), (5, "q6_k"), (8, "q8_0"), (1, "q4_0")]
    for dtype in FLOAT_DTYPES:
        for m in (1, 6, 33):
            check(m, mixed, 256, backend, device, dtype, bias=True)
            check(m, digits, 256, backend, device, dtype, bias=True)


def test_rows_and_blocks_may_be_parts_of_wider_ones():
    rows, x = random_rows(12, 256, "q4_1"), torch.randn(4, 256)[:, 64:192]
    part = rows[2:9, 40:120]
    want = linear_gguf(x.contiguous(), [part.contiguous()], ["q4_1"])
    assert torch.equal(linear_gguf(x, [part], ["q4_1"]), want)
    assert linear_gguf(x[:0], [part], ["q4_1"]).shape == (0, 7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_not_finite(bad):
    rows, x = [random_rows(20, 64, kind) for kind in ("q4_1", "q8_0", "q4_0")], torch.randn(3, 64)
    want = linear_gguf(x, rows, ["q4_1", "q8_0", "q4_0"])
    x[1, 40] = bad
    got = linear_gguf(x, rows, ["q4_1", "q8_0", "q4_0"])
    assert not got[1].isfinite().any()
    assert torch.equal(got[::2], want[::2])


def test_numbers_of_any_size():
    """Zeros, a run of tiny numbers next to large ones, and tiny ones alone."""
    rows, kinds = [random_rows(9, 64, kind) for kind in ("q4_1", "q8_0")], ["q4_1", "q8_0"]
    x = torch.randn(4, 64)
    x[0], x[1, :32] = 0, x[1, :32] * 1e-20
    x[2] *= 1e30
    want = x.double() @ torch.cat([meaning(*pair) for pair in zip(rows, kinds, strict=True)]).T
    x[3] *= 1e-36
    got = linear_gguf(x, rows, kinds)
    assert not got[0].any()
    assert ((got.double() - want)[1:3].abs() <= 1e-3 * want[1:3].abs().amax(1, keepdim=True)).all()
    assert (got[3].abs() <= 1e-32).all()


def test_a_row_does_not_depend_on_the_others():
    rows, x = [random_rows(40, 192, "q4_1"), random_rows(3, 192, "q8_0")], torch.randn(16, 192)
    whole = linear_gguf(x, rows, ["q4_1", "q8_0"])
    for count in (1, 2, 3, 7):
        assert torch.equal(linear_gguf(x[:count], rows, ["q4_1", "q8_0"]), whole[:count])

"""What gated_mlp_gguf means: two times linear_gguf with silu_mul between."""

import pytest
import torch

from gossamer.ops import gated_mlp_gguf, linear_gguf, silu_mul
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import runs
from tests.ops.test_linear_gguf import meaning, random_rows

OP = "gated_mlp_gguf"
RUNS = runs(OP)


def _args(x=(3, 64), gate_up=((64, 40),), types="q4_1", down=((5, 20),), down_types="q4_1", **rest):
    def rows(shapes):
        return [torch.zeros(s, dtype=torch.uint8) if isinstance(s, tuple) else s for s in shapes]

    x = torch.zeros(x) if isinstance(x, tuple) else x
    biases = (rest.get("gate_up_bias"), rest.get("down_bias"))
    return x, rows(gate_up), types, rows(down), down_types, *biases


BAD_CALLS = [
    (_args(x=None), TypeError, f"{OP}: x is NoneType; must be a torch.Tensor"),
    (
        _args(gate_up=()),
        ValueError,
        f"{OP}: gate_up_types has 1 names and gate_up 0 tensors; must be one for each, at least 1",
    ),
    (
        _args(gate_up=((63, 40),)),
        ValueError,
        f"{OP}: gate_up has 63 rows; must be an even number, at least 2",
    ),
    (
        _args(gate_up=((64, 60),)),
        ValueError,
        f"{OP}: gate_up[0] has rows of 96 weights; must be 64, as in x",
    ),
    (
        _args(down=((5, 40),)),
        ValueError,
        f"{OP}: down[0] has rows of 64 weights; must be 32, as half the rows of gate_up",
    ),
    (
        _args(down_types="q4_1,q8_0"),
        ValueError,
        f"{OP}: down_types has 2 names and down 1 tensors; must be one for each, at least 1",
    ),
    (
        _args(down=(torch.zeros(5, 20),)),
        TypeError,
        f"{OP}: down[0] has dtype float32; must be uint8",
    ),
    (
        _args(gate_up_bias=torch.zeros(5)),
        ValueError,
        f"{OP}: gate_up_bias has shape [5]; must be [64], one for each row of gate_up",
    ),
    (
        _args(down_bias=torch.zeros(5).half()),
        TypeError,
        f"{OP}: down_bias has dtype float16; must be float32, the dtype of x",
    ),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_agrees_with_the_oracle(op, backend, device, dtype, bias):
    kinds, down_kinds = ("q4_1", "q8_0", "f16"), ("q4_0", "q6_k")
    gate_up = [random_rows(n, 64, kind) for n, kind in zip((256, 200, 56), kinds, strict=True)]
    down = [random_rows(n, 256, kind) for n, kind in zip((9, 40), down_kinds, strict=True)]
    both = torch.cat([meaning(*pair) for pair in zip(gate_up, kinds, strict=True)])
    last = torch.cat([meaning(*pair) for pair in zip(down, down_kinds, strict=True)])
    biases = [torch.randn(n).to(dtype) if bias else None for n in (512, 49)]
    for rows in (1, 5, 20):
        x = (torch.randn(2, rows, 64) / 8).to(dtype)[:, : max(rows - 1, 1)]
        on = [[t.to(device) for t in tensors] for tensors in (gate_up, down)]
        there = [None if b is None else b.to(device) for b in biases]
        got = gated_mlp_gguf(x.to(device), on[0], kinds, on[1], down_kinds, *there, backend=backend)
        gate, up = (x.double() @ both.T + (biases[0].double() if bias else 0)).chunk(2, -1)
        hidden = torch.nn.functional.silu(gate) * up
        want = hidden @ last.T + (biases[1].double() if bias else 0)
        size = hidden.abs() @ last.abs().T + 1
        eps = torch.finfo(dtype).eps + 2**-13
        assert got.dtype is dtype
        assert got.is_contiguous()
        assert ((got.cpu().double() - want).abs() <= 6 * eps * size).all()


def test_is_the_separate_operators():
    x = torch.randn(3, 64)
    gate_up, down = random_rows(128, 64, "q4_1"), random_rows(30, 64, "q8_0")
    want = linear_gguf(silu_mul(linear_gguf(x, [gate_up], ["q4_1"])), [down], ["q8_0"])
    assert torch.equal(gated_mlp_gguf(x, [gate_up], ["q4_1"], [down], ["q8_0"]), want)
    assert gated_mlp_gguf(x[:0], [gate_up], ["q4_1"], [down], ["q8_0"]).shape == (0, 30)

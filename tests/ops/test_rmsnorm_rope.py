"""What rmsnorm_rope means."""

import importlib

import pytest
import torch
from torch.nn import functional as F

from gossamer.ops import OPS, rmsnorm_rope, rope
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops import test_rope
from tests.ops.spec import OpSpec, rounding_factor, runs

RUNS = runs("rmsnorm_rope")


def _inputs(shape, make):
    """One of those of rope, for each shape another, with a weight for all heads or for each."""
    kinds = list(test_rope.SPEC.inputs(shape, make))
    kind = shape[-1] % len(kinds)
    x, positions, cos, sin = kinds[kind]
    yield x, make(*x.shape[1:]) if kind % 2 else make(x.shape[2]), positions, cos, sin


def _magnitude(x, weight, positions, cos, sin, eps=1e-6, interleaved=False):
    reference, zero = OPS["rmsnorm_rope"].reference, torch.zeros_like(cos)
    rest = (x, weight, positions)
    return (
        reference(*rest, cos, zero, eps, interleaved).abs()
        + reference(*rest, zero, sin, eps, interleaved).abs(),
    )


def _args(**changes):
    args = {
        "x": torch.zeros(3, 2, 8),
        "weight": torch.ones(8),
        "positions": torch.tensor([0, 4, 2]),
        "cos": torch.ones(5, 4),
        "sin": torch.zeros(5, 4),
        "eps": 1e-6,
        "interleaved": False,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


SHAPES = "must be [8] or [2, 8], the channels of x or its heads too"
SPEC = OpSpec(
    op="rmsnorm_rope",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    widths=(2, 1024),
    bad_calls=[
        (_args(x=[1.0]), TypeError, "rmsnorm_rope: x is list; must be a torch.Tensor"),
        (
            _args(x=torch.zeros(3, 8)),
            ValueError,
            "rmsnorm_rope: x has 2 dimensions; must have 3: tokens, heads, head_dim",
        ),
        (
            _args(weight=torch.ones(8).half()),
            TypeError,
            "rmsnorm_rope: weight has dtype float16; must be float32, the dtype of x",
        ),
        *(
            (
                _args(weight=torch.ones(shape)),
                ValueError,
                f"rmsnorm_rope: weight has shape {list(shape)}; {SHAPES}",
            )
            for shape in ((7,), (3, 8), (1, 8), ())
        ),
        (
            _args(positions=torch.zeros(3)),
            TypeError,
            "rmsnorm_rope: positions has dtype float32; must be int64",
        ),
        (
            _args(sin=torch.zeros(6, 4)),
            ValueError,
            "rmsnorm_rope: sin has shape [6, 4]; must be [5, 4], the shape of cos",
        ),
        (
            _args(x=torch.zeros(3, 2, 1026), weight=torch.ones(1026)),
            ValueError,
            "rmsnorm_rope: head_dim is 1026; must be 2 to 1024",
        ),
        (_args(eps="small"), TypeError, "rmsnorm_rope: eps is str; must be a float"),
        (_args(eps=-1.0), ValueError, "rmsnorm_rope: eps is -1.0; must be finite and >= 0"),
        (_args(interleaved="yes"), TypeError, "rmsnorm_rope: interleaved is str; must be a bool"),
    ],
)
BAD_VALUES = [
    (
        _args(positions=torch.tensor([0, 5, 2])),
        ValueError,
        "rmsnorm_rope: a position is 5; must be 0 to 4",
    ),
]


@pytest.mark.parametrize("interleaved", [False, True])
def test_is_rope_of_the_norm(interleaved):
    x, positions = torch.randn(3, 2, 20), torch.tensor([7, 0, 49])
    weight, (cos, sin) = torch.randn(20), torch.randn(2, 50, 8)
    normed = F.rms_norm(x, (20,), weight, 1e-5)
    want = rope(normed, positions, cos, sin, interleaved=interleaved)
    got = rmsnorm_rope(x, weight, positions, cos, sin, 1e-5, interleaved)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_queries_and_keys_of_a_fused_projection(op, backend, device, dtype, interleaved):
    """Head counts around the tiles of the kernels, partial rotation, a weight for each head."""
    for tokens, heads, head_dim, pairs in [
        (1, 40, 128, 64),
        (5, 3, 64, 32),
        (2, 65, 80, 20),
        (7, 1, 96, 16),
        (3, 2, 1024, 300),
        (2, 3, 576, 32),
        (2, 3, 31, 15),
    ]:
        qkv = torch.randn(tokens, heads + 2, head_dim, device=device).to(dtype)
        weight = torch.randn(heads, head_dim, device=device).to(dtype)
        positions = torch.randint(0, 100, (2 * tokens,), device=device)[::2]
        cos, sin = torch.randn(2, 100, pairs, device=device)
        args = (qkv[:, :heads], weight, positions, cos, sin, 1e-6, interleaved)
        got = rmsnorm_rope(*args, backend=backend)
        SPEC.check(got, args, rounding_factor(backend, dtype))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_wrong_position_in_triton_makes_nan_of_its_row(interleaved):
    """Straight to the kernel, past the check that CPU tensors get."""
    kernel = importlib.import_module("gossamer.kernels.rmsnorm_rope")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_wrong_positions(kernel.rmsnorm_rope, device, interleaved)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_wrong_position_on_the_gpu_makes_nan_of_its_row(backend, interleaved):
    call = lambda *args: rmsnorm_rope(*args, backend=backend)  # noqa: E731
    _check_wrong_positions(call, "cuda", interleaved)
    torch.cuda.synchronize()  # the device is still usable


def _check_wrong_positions(call, device, interleaved):
    positions = torch.tensor([0, -1, 4, 5, 1 << 62, 3], device=device)
    wrong = (positions < 0) | (positions > 4)
    for head_dim, pairs in ((64, 16), (7, 3)):
        x, weight = torch.randn(6, 3, head_dim, device=device), torch.ones(head_dim, device=device)
        cos, sin = torch.randn(2, 5, pairs, device=device)
        got = call(x, weight, positions, cos, sin, 1e-6, interleaved)
        assert got[wrong].isnan().all()
        kept = (x[~wrong], weight, positions[~wrong], cos, sin, 1e-6, interleaved)
        torch.testing.assert_close(got[~wrong], rmsnorm_rope(*kept, backend="reference"))


def test_no_tokens_and_no_heads():
    for backend in OPS["rmsnorm_rope"].available("cpu"):
        for tokens, heads in ((0, 2), (3, 0)):
            x, positions = torch.zeros(tokens, heads, 8), torch.zeros(tokens, dtype=torch.int64)
            tables = torch.ones(2, 5, 4)
            got = rmsnorm_rope(x, torch.ones(8), positions, *tables, backend=backend)
            assert got.shape == x.shape

"""What rope means."""

import importlib

import pytest
import torch

from gossamer.ops import OPS, rope
from gossamer.ops.checks import FLOAT_DTYPES
from tests.ops.spec import LAYOUTS, OpSpec, poison, rounding_factor, runs

RUNS = runs("rope")
POSITIONS = 100  # lines of the tables


def _tables(pairs, make):
    """cos and sin by name alone: any numbers will do."""
    return tuple(make(POSITIONS, pairs).float().contiguous() for _ in range(2))


def _inputs(shape, make):
    """Rows are tokens; where they are very many, heads of one token. All, half, few channels."""
    *leading, head_dim = shape if len(shape) > 1 else (1, *shape)
    tokens, heads = leading[0], torch.Size(leading[1:]).numel()
    if tokens > 1 << 20:  # to look at as many positions would take long
        tokens, heads = 1, tokens
    for pairs in sorted({head_dim // 2, (head_dim + 3) // 4, head_dim // 64 + 1}):
        x = make(tokens, heads, head_dim)
        positions = torch.randint(0, POSITIONS - 1, (tokens,), device=x.device)
        yield x, positions, *_tables(pairs, make)


def _magnitude(x, positions, cos, sin, interleaved=False):
    reference, zero = OPS["rope"].reference, torch.zeros_like(cos)
    return (
        reference(x, positions, cos, zero, interleaved).abs()
        + reference(x, positions, zero, sin, interleaved).abs(),
    )


def _args(**changes):
    args = {
        "x": torch.zeros(3, 2, 8),
        "positions": torch.tensor([0, 4, 2]),
        "cos": torch.ones(5, 4),
        "sin": torch.zeros(5, 4),
        "interleaved": False,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


BAD_SHAPE = "must be [max_positions, rotary_dim / 2], at least one position and 1 to 4 pairs"
SPEC = OpSpec(
    op="rope",
    inputs=_inputs,
    magnitude=_magnitude,
    roundings=(1,),
    widths=(2, 1 << 62),
    bad_calls=[
        (_args(x=[1.0]), TypeError, "rope: x is list; must be a torch.Tensor"),
        (
            _args(x=torch.zeros(3, 2, 8).double()),
            TypeError,
            "rope: x has dtype float64; must be one of float32, float16, bfloat16",
        ),
        (
            _args(x=torch.zeros(3, 8)),
            ValueError,
            "rope: x has 2 dimensions; must have 3: tokens, heads, head_dim",
        ),
        (
            _args(positions=torch.zeros(3)),
            TypeError,
            "rope: positions has dtype float32; must be int64",
        ),
        (
            _args(positions=torch.zeros(3, dtype=torch.int64, device="meta")),
            ValueError,
            "rope: positions is on meta; must be on cpu",
        ),
        (
            _args(positions=torch.tensor([0, 1])),
            ValueError,
            "rope: positions has shape [2]; must be [3], one for each token of x",
        ),
        (
            _args(cos=torch.ones(5, 4).half()),
            TypeError,
            "rope: cos has dtype float16; must be float32",
        ),
        (_args(sin=None), TypeError, "rope: sin is NoneType; must be a torch.Tensor"),
        *(
            (
                _args(cos=torch.ones(shape), sin=torch.ones(shape)),
                ValueError,
                f"rope: cos has shape {list(shape)}; {BAD_SHAPE} of channels",
            )
            for shape in ((5, 5), (5, 0), (0, 4), (4,))
        ),
        (
            _args(sin=torch.zeros(6, 4)),
            ValueError,
            "rope: sin has shape [6, 4]; must be [5, 4], the shape of cos",
        ),
        (
            _args(sin=torch.zeros(4, 5).t()),
            ValueError,
            "rope: sin has strides [1, 5]; must be contiguous",
        ),
        (_args(interleaved="yes"), TypeError, "rope: interleaved is str; must be a bool"),
    ],
)
BAD_VALUES = [
    (
        _args(positions=torch.tensor([0, 5, 2])),
        ValueError,
        "rope: a position is 5; must be 0 to 4",
    ),
    (
        _args(positions=torch.tensor([-1, 9, 2])),
        ValueError,
        "rope: a position is -1; must be 0 to 4",
    ),
]


def _angles(positions, pairs):
    rates = 10_000.0 ** (-torch.arange(pairs) / pairs)
    return torch.outer(positions, rates)


def test_turns_pairs_by_the_angle_of_the_position():
    """As complex numbers: x * e^(i angle)."""
    angles = _angles(torch.arange(50.0), 8)
    x, positions = torch.randn(3, 2, 20), torch.tensor([7, 0, 49])
    turn = torch.polar(torch.ones(3, 1, 8), angles[positions].unsqueeze(1))
    args = (x, positions, angles.cos(), angles.sin())
    halves = torch.complex(x[..., :8], x[..., 8:16]) * turn
    want = torch.cat((halves.real, halves.imag, x[..., 16:]), dim=-1)
    torch.testing.assert_close(rope(*args), want)
    neighbours = torch.view_as_complex(x[..., :16].reshape(3, 2, 8, 2)) * turn
    want = torch.cat((torch.view_as_real(neighbours).flatten(-2), x[..., 16:]), dim=-1)
    torch.testing.assert_close(rope(*args, interleaved=True), want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_interleaved_pairs(op, backend, device, dtype, layout):
    """The grid of test_parity, which has the default pairs, for the others."""

    def make(*shape):
        return LAYOUTS[layout](torch.randn(shape, device=device).to(dtype))

    for shape in SPEC.shapes():
        for args in SPEC.inputs(shape, make):
            poison([args[0].shape], dtype, device)
            got = rope(*args, interleaved=True, backend=backend)
            assert got.is_contiguous()
            SPEC.check(got, (*args, True), rounding_factor(backend, dtype))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_queries_and_keys_of_a_fused_projection(op, backend, device, dtype, interleaved):
    """Head counts around the tiles of the kernels, partial rotation, a view of a wider tensor."""
    for tokens, heads, head_dim, pairs in [
        (1, 40, 128, 64),
        (5, 3, 64, 32),
        (2, 65, 80, 20),
        (7, 1, 96, 16),
        (3, 17, 48, 24),
        (2, 9, 528, 264),
    ]:
        qkv = torch.randn(tokens, heads + 2, head_dim, device=device).to(dtype)
        x, make = qkv[:, :heads], lambda *shape: torch.randn(shape, device=device)
        positions = torch.randint(0, POSITIONS, (2 * tokens,), device=device)[::2]
        args = (x, positions, *_tables(pairs, make), interleaved)
        got = OPS["rope"](*args, backend=backend)
        SPEC.check(got, args, rounding_factor(backend, dtype))
        assert torch.equal(got[..., 2 * pairs :], x[..., 2 * pairs :])  # copied, not computed


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_widths_on_the_cpu(dtype):
    for pairs in [*range(1, 70), 127, 128, 129, 1000]:
        for interleaved in (False, True):
            x = torch.randn(2, 3, 2 * pairs + pairs % 5).to(dtype)
            args = (x, torch.tensor([3, 99]), *_tables(pairs, torch.randn), interleaved)
            SPEC.check(OPS["rope"](*args, backend="cpu"), args)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_infinity_and_nan_stay_in_their_pair(op, backend, device, interleaved):
    x = torch.ones(1, 1, 8, device=device)
    x[0, 0, 0], x[0, 0, 7] = float("inf"), float("nan")
    cos, sin = torch.full((1, 3), 0.6, device=device), torch.full((1, 3), 0.8, device=device)
    position = torch.zeros(1, dtype=torch.int64, device=device)
    got = rope(x, position, cos, sin, interleaved=interleaved, backend=backend)[0, 0].cpu()
    other = 1 if interleaved else 3
    assert got[[0, other]].tolist() == [float("inf")] * 2
    assert got[7].isnan()
    assert got[[i for i in range(7) if i not in (0, other)]].isfinite().all()


def test_positions_are_checked_before_anything_else_is_read():
    """A position far out of memory is an error on the CPU, not a crash."""
    for wrong in (-(1 << 62), 1 << 62, 5):
        with pytest.raises(ValueError, match=f"a position is {wrong}; must be 0 to 4"):
            rope(*_args(positions=torch.tensor([1, 2, wrong]))[:4])


def test_no_tokens_and_no_heads():
    none = torch.zeros(0, dtype=torch.int64)
    for backend in OPS["rope"].available("cpu"):
        for x, positions in ((torch.zeros(0, 2, 8), none), (torch.zeros(3, 0, 8), _args()[1])):
            tables = torch.ones(5, 4), torch.ones(5, 4)
            assert rope(x, positions, *tables, backend=backend).shape == x.shape


def test_threads_agree_with_one():
    """Large inputs are cut between any two heads."""
    x, positions = torch.randn(61, 7, 128), torch.randint(0, POSITIONS, (61,))
    tables = _tables(64, torch.randn)
    alone = [rope(x[i : i + 1], positions[i : i + 1], *tables) for i in range(61)]
    assert torch.equal(rope(x, positions, *tables), torch.cat(alone))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_wrong_position_in_triton_makes_nan_of_its_row(interleaved):
    """Straight to the kernel, past the check that CPU tensors get."""
    kernel = importlib.import_module("gossamer.kernels.rope")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_wrong_positions(
        lambda *args: kernel.rope(*args, interleaved), device, interleaved, torch.float32
    )


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["reference", "triton", "cuda"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_a_wrong_position_on_the_gpu_makes_nan_of_its_row(backend, interleaved, dtype):
    def call(*args):
        return rope(*args, interleaved=interleaved, backend=backend)

    _check_wrong_positions(call, "cuda", interleaved, dtype)
    torch.cuda.synchronize()  # the device is still usable


def _check_wrong_positions(call, device, interleaved, dtype):
    positions = torch.tensor([0, -1, 4, 5, 1 << 62, -(1 << 62), 3], device=device)
    wrong = ((positions < 0) | (positions > 4)).cpu()
    for head_dim, pairs in ((64, 16), (7, 3)):  # packs, and single channels
        x = torch.randn(7, 5, head_dim, device=device).to(dtype)
        tables = [torch.randn(5, pairs, device=device) for _ in range(2)]
        got = call(x, positions, *tables).cpu()
        assert got[wrong].isnan().all()
        positions_or_0 = positions * ~wrong.to(device)
        want = rope(x, positions_or_0, *tables, interleaved=interleaved, backend="reference").cpu()
        torch.testing.assert_close(got[~wrong], want[~wrong])


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cuda"])
@pytest.mark.parametrize("head_dim", [128, 129])
def test_more_than_2_31_elements(backend, head_dim):
    tokens = (1 << 19) + 3
    x = torch.zeros(tokens, 33, head_dim, dtype=torch.bfloat16, device="cuda")
    some = [0, 1, (1 << 31) // (33 * head_dim), tokens - 1]
    x[some] = torch.randn(4, 33, head_dim, device="cuda").bfloat16()
    positions = torch.arange(tokens, device="cuda") % POSITIONS
    tables = _tables(64, lambda *shape: torch.randn(shape, device="cuda"))
    got = rope(x, positions, *tables, backend=backend)
    want = rope(x[some], positions[some], *tables, backend="reference")
    torch.testing.assert_close(got[some], want)

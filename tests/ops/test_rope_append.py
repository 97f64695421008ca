"""What rope_append writes and returns: what norm, RoPE, a basis and kv_pack would, one by one."""

import importlib

import pytest
import torch

from gossamer.ops import OPS, BlockFormat, Rotation, Turn, kv_pack, kv_unpack, rope, rope_append
from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.rope_append import PLAIN
from tests.ops.spec import runs

RUNS = runs("rope_append")
NBYTES = BlockFormat(8, None, "fp32").nbytes


def _args(**changes):
    args = {
        "qkv": torch.zeros(3, 8, 8),
        "positions": torch.tensor([0, 4, 2]),
        "cos": torch.ones(5, 4),
        "sin": torch.zeros(5, 4),
        "k_blocks": torch.zeros(4, 2, NBYTES, dtype=torch.uint8),
        "v_blocks": torch.zeros(4, 2, NBYTES, dtype=torch.uint8),
        "slots": torch.tensor([40, -1, 7]),
        "q": torch.zeros(3, 4, 8),
        "norm": None,
        "eps": 1e-6,
        "matrices": None,
        "offsets": None,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


BAD_CALLS = [
    (_args(qkv=[1.0]), TypeError, "rope_append: qkv is list; must be a torch.Tensor"),
    (
        _args(qkv=torch.zeros(3, 8)),
        ValueError,
        "rope_append: qkv has 2 dimensions; must have 3: tokens, heads, head_dim",
    ),
    (
        _args(qkv=torch.zeros(3, 8, 16)[..., ::2]),
        ValueError,
        "rope_append: qkv has strides [128, 16, 2]; must be 1 in the last dimension",
    ),
    (
        _args(cos=torch.ones(5, 3), sin=torch.ones(5, 3)),
        ValueError,
        "rope_append: cos has shape [5, 3]; must have 4 columns, a pair of channels each",
    ),
    (
        _args(k_blocks=torch.zeros(4, 2, 512, dtype=torch.uint8)),
        ValueError,
        f"rope_append: blocks has shape [4, 2, 512]; must be [blocks, heads, {NBYTES}], "
        "the bytes of a block of this format",
    ),
    (
        _args(v_blocks=torch.zeros(5, 2, NBYTES, dtype=torch.uint8)),
        ValueError,
        f"rope_append: v_blocks has shape [5, 2, {NBYTES}]; must be [4, 2, {NBYTES}], "
        "the shape of k_blocks",
    ),
    (
        _args(slots=torch.tensor([1, 2])),
        ValueError,
        "rope_append: slots has shape [2]; must be [3], one for each token of qkv",
    ),
    (
        _args(q=torch.zeros(3, 6, 8)),
        ValueError,
        "rope_append: q has shape [3, 6, 8]; must be [3, 4, 8], the query heads of qkv",
    ),
    (
        _args(norm=torch.ones(8)),
        ValueError,
        "rope_append: norm has shape [8]; must be [6, 8], for each head of q and k",
    ),
    (
        _args(matrices=torch.zeros(6, 8, 8).half()),
        TypeError,
        "rope_append: matrices has dtype float16; must be float32, the dtype of qkv",
    ),
    (
        _args(offsets=torch.zeros(6, 8)),
        ValueError,
        "rope_append: offsets are given without matrices; must be with them",
    ),
    (_args(eps=-1.0), ValueError, "rope_append: eps is -1.0; must be finite and >= 0"),
]
BAD_VALUES = [
    (
        _args(positions=torch.tensor([0, 5, 2])),
        ValueError,
        "rope_append: a position is 5; must be 0 to 4",
    ),
    (
        _args(slots=torch.tensor([0, 128, 2])),
        ValueError,
        "rope_append: a slot is 128; must be 0 to 127, or -1 for none",
    ),
    (
        _args(slots=torch.tensor([5, -1, 5])),
        ValueError,
        "rope_append: slot 5 is repeated; must be there once",
    ),
]


class Case:
    """Random arguments; blocks are those of one layer of three, full of NaN."""

    def __init__(self, shape, dtype, device, *, norm=False, turn=False, shift=False):
        tokens, self.queries, self.kv, self.dims = shape
        roped = self.queries + self.kv

        def make(*size):
            return torch.randn(size, device=device).to(dtype)

        # A part of a wider projection.
        self.qkv = make(tokens, roped + self.kv + 1, self.dims)[:, 1:]
        positions = torch.randint(0, 50, (2 * tokens,), device=device)[::2]
        cos, sin = torch.randn(2, 50, self.dims // 2, device=device)
        weight = make(roped, self.dims) if norm else None
        self.rotation = Rotation(positions, cos, sin, weight, 1e-5)
        self.turn = None
        if turn:
            matrices = make(roped, self.dims, self.dims) / self.dims**0.5
            self.turn = Turn(matrices, make(roped, self.dims) if shift else None)
        self.fmt = BlockFormat(self.dims, None, PLAIN[dtype])
        pages = -(-tokens // 32) + 2
        size = (2, pages, 3, self.kv, self.fmt.nbytes)
        self.memory = torch.full(size, 255, dtype=torch.uint8, device=device)
        self.k, self.v = (memory[:, 1] for memory in self.memory)
        self.slots = torch.randperm(32 * pages, device=device)[:tokens]
        self.slots[tokens // 2] = -1

    def run(self, backend):
        return rope_append(
            *(self.qkv, self.rotation, self.k, self.v, self.slots, self.turn), backend=backend
        )

    def oracle(self):
        """q and k in float64, and how large the terms are that make them."""
        positions, cos, sin, norm, eps = self.rotation
        x = self.qkv[:, : self.queries + self.kv].double()
        if norm is not None:
            x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.double()
        c, s = (table.double()[positions][:, None] for table in (cos, sin))
        a, b = x.chunk(2, -1)
        x = torch.cat((a * c - b * s, b * c + a * s), -1)
        size = torch.cat(((a * c).abs() + (b * s).abs(), (b * c).abs() + (a * s).abs()), -1)
        if self.turn is not None:
            matrices = self.turn.matrices.double()
            x = torch.einsum("thd,hde->the", x, matrices)
            size = torch.einsum("thd,hde->the", size, matrices.abs())
            if self.turn.offsets is not None:
                x, size = x + self.turn.offsets.double(), size + self.turn.offsets.double().abs()
        return x.split((self.queries, self.kv), 1), size.split((self.queries, self.kv), 1)


def check(case, backend):
    before = case.memory.clone()
    q = case.run(backend)
    (want_q, want_k), (size_q, size_k) = case.oracle()
    live = case.slots >= 0
    # Rounded after RoPE and after the basis; in float32 a few times on the way.
    eps = 2 * torch.finfo(q.dtype).eps + 8 * torch.finfo(torch.float32).eps
    assert q.is_contiguous()
    assert ((q.double() - want_q).abs() <= eps * size_q).all()
    k, v = (kv_unpack(blocks, case.slots[live], case.fmt, q.dtype) for blocks in (case.k, case.v))
    assert ((k.double() - want_k[live]).abs() <= eps * size_k[live]).all()
    assert torch.equal(v, case.qkv[:, case.queries + case.kv :][live])
    # Nothing else was written.
    for blocks in (case.k, case.v):
        rows = torch.zeros(len(live), case.kv, case.dims, device=q.device).to(q.dtype)
        rows[:] = float("nan")
        kv_pack(rows[live], blocks, case.slots[live], case.fmt)
        values = blocks.view(q.dtype)
        assert values.isnan().all()
    case.k.fill_(255)
    case.v.fill_(255)
    assert torch.equal(case.memory, before)


@pytest.mark.parametrize("kind", ["", "norm", "turn", "turn shift", "norm turn shift"])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_against_float64(op, backend, device, dtype, kind):
    shapes = [(1, 4, 2, 64), (17, 3, 1, 128), (5, 7, 7, 80), (33, 2, 2, 32)]
    shapes += [(3, 5, 1, 256), (2, 1, 1, 96), (4, 2, 1, 8)]
    for shape in shapes:
        check(Case(shape, dtype, device, **dict.fromkeys(kind.split(), True)), backend)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_the_reference_is_the_separate_ops(dtype):
    case = Case((9, 4, 2, 64), dtype, "cpu")
    q = case.run("reference")
    turned = rope(case.qkv[:, :6], *case.rotation[:3], backend="reference")
    k, v = case.k.clone(), case.v.clone()
    kv_pack(turned[:, 4:], k, case.slots, case.fmt)
    kv_pack(case.qkv[:, 6:], v, case.slots, case.fmt)
    assert torch.equal(q, turned[:, :4])
    assert torch.equal(k, case.k)
    assert torch.equal(v, case.v)


@pytest.mark.parametrize("turn", [False, True])
def test_wrong_numbers_in_triton_harm_their_rows_alone(turn):
    """Straight to the kernel, past the checks that CPU tensors get."""
    kernel = importlib.import_module("gossamer.kernels.rope_append")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = Case((6, 4, 2, 64), torch.float32, device, turn=turn)
    positions = torch.tensor([0, -1, 49, 50, 1 << 40, 3], device=device)
    wrong = (positions < 0) | (positions > 49)
    slots = torch.tensor([0, 1, 10**9, -7, 32 * len(case.k), 5], device=device)
    q = torch.full((6, 4, 64), 7.0, device=device)
    args = (case.qkv, positions, *case.rotation[1:3], case.k, case.v, slots, q, None, 1e-6)
    kernel.rope_append(*args, *(case.turn or (None, None)))
    assert q[wrong].isnan().all()
    assert q[~wrong].isfinite().all()
    rows = kv_unpack(case.v, torch.arange(32 * len(case.v), device=device), case.fmt, torch.float32)
    assert rows.isfinite().all(-1).all(-1).nonzero().flatten().tolist() == [0, 1, 5]


def test_no_tokens():
    for backend in OPS["rope_append"].available("cpu"):
        case = Case((1, 4, 2, 64), torch.float32, "cpu")
        none = Rotation(case.rotation.positions[:0], *case.rotation[1:])
        q = rope_append(case.qkv[:0], none, case.k, case.v, case.slots[:0], backend=backend)
        assert q.shape == (0, 4, 64)


def test_projections_without_queries_are_refused():
    case = Case((2, 4, 2, 64), torch.float32, "cpu")
    with pytest.raises(ValueError, match=r"qkv has shape \[2, 4, 64\]; must be \[tokens, "):
        rope_append(case.qkv[:, :4], case.rotation, case.k, case.v, case.slots)

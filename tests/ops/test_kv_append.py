"""What kv_append writes: what kv_pack would, at the place that a block table names."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops import OPS, BlockFormat, kv_append, kv_pack
from tests.ops.kv import formats
from tests.ops.spec import runs

RUNS = runs("kv_append")
FMT = BlockFormat(64, 24)


def _args(**changes):
    args = {
        "x": torch.zeros(2, 3, 64),
        "blocks": torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8),
        "block_table": torch.tensor([[3, 1], [2, 0]], dtype=torch.int32),
        "positions": torch.tensor([40, 7]),
        "keep": 24,
        "values": "fp16",
        "scales": "none",
        "weights": None,
        "scores": None,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


BAD_CALLS = [
    (_args(x=None), TypeError, "kv_append: x is NoneType; must be a torch.Tensor"),
    (
        _args(values="int4", scales="channel", blocks=torch.zeros(4, 3, 896, dtype=torch.uint8)),
        ValueError,
        "kv_append: scales is 'channel'; must be 'none', 'row' or 'group'",
    ),
    (
        _args(keep=None, values="4x72"),
        ValueError,
        "kv_append: values is '4x72', which is 72 channels; must add up to 64, the head_dim",
    ),
    (
        _args(block_table=torch.zeros(2, 2, dtype=torch.int64)),
        TypeError,
        "kv_append: block_table has dtype int64; must be int32",
    ),
    (
        _args(block_table=torch.zeros(3, 2, dtype=torch.int32)),
        ValueError,
        "kv_append: block_table has shape [3, 2]; must be [2, max_blocks], "
        "a line for each row of x",
    ),
    (
        _args(positions=torch.tensor([1, 2, 3])),
        ValueError,
        "kv_append: positions has shape [3]; must be [2], one for each row of x",
    ),
]
BAD_VALUES = [
    (
        _args(positions=torch.tensor([64, 7])),
        ValueError,
        "kv_append: a position is 64; must be 0 to 63, or -1 for none",
    ),
    (
        _args(block_table=torch.tensor([[3, 9], [2, 0]], dtype=torch.int32)),
        ValueError,
        "kv_append: the block of a position is 9; must be 0 to 3",
    ),
    (
        _args(
            block_table=torch.tensor([[3, 2], [2, 0]], dtype=torch.int32),
            positions=torch.tensor([39, 7]),
        ),
        ValueError,
        "kv_append: slot 71 is repeated; must be there once",
    ),
]


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@settings(max_examples=100, deadline=None)
@given(
    fmt=formats().filter(lambda f: not f.whole_blocks),
    sequences=st.integers(0, 40),
    ranking=st.sampled_from([None, "weights", "scores"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_is_kv_pack_at_the_slots_of_the_table(
    op, backend, device, fmt, sequences, ranking, dtype, seed
):
    torch.manual_seed(seed)
    table = torch.randperm(3 * sequences + 1)[: 3 * sequences].view(sequences, 3).int()
    positions = torch.randint(-1, 96, (sequences,))
    x = torch.randn(sequences, 2, fmt.head_dim).to(dtype)
    shape = x.shape[1:] if ranking == "weights" else x.shape
    ranks = {ranking: torch.rand(shape)} if ranking and fmt.keep else {}
    blocks = torch.full((3 * sequences + 1, 2, fmt.nbytes), 0xA5, dtype=torch.uint8)
    want = blocks.clone()
    slots = torch.full((sequences,), -1)
    for i, p in enumerate(positions.tolist()):
        if p >= 0:
            slots[i] = int(table[i, p // 32]) * 32 + p % 32
    kv_pack(x, want, slots, fmt, **ranks, backend="reference")
    got = blocks.to(device)
    ranks = {name: t.to(device) for name, t in ranks.items()}
    numbers = table.to(device), positions.to(device)
    kv_append(x.to(device), got, *numbers, fmt, **ranks, backend=backend)
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("backend", OPS["kv_append"].available("cpu"))
def test_a_bad_position_is_found_before_anything_is_written(backend):
    for args, *_ in BAD_VALUES:
        full = args[1].fill_(0xA5)
        with pytest.raises(ValueError, match="kv_append"):
            OPS["kv_append"](torch.randn(2, 3, 64), full, *args[2:], backend=backend)
        assert (full == 0xA5).all()


@pytest.mark.gpu
def test_replays_in_a_cuda_graph():
    """One decode step, captured once; positions, table and rows change between replays."""
    sequences = 256
    x = torch.randn(sequences, 8, 128, device="cuda").half()
    fmt = BlockFormat(128, 40)
    blocks = torch.zeros(4 * sequences, 8, fmt.nbytes, dtype=torch.uint8, device="cuda")
    table = torch.randperm(4 * sequences, device="cuda").view(sequences, 4).int()
    positions = torch.full((sequences,), -1, device="cuda")
    kv_append(x, blocks, table, positions, fmt)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kv_append(x, blocks, table, positions, fmt)
    want = blocks.clone()
    for step in range(3):
        x.copy_(torch.randn_like(x))
        positions.copy_(torch.randint(-1, 128, (sequences,), device="cuda"))
        if step == 2:
            table.copy_(table.flip(0))
        graph.replay()
        kv_append(x, want, table, positions, fmt, backend="reference")
        torch.cuda.synchronize()
        assert torch.equal(blocks, want)


@pytest.mark.gpu
def test_numbers_on_the_host_are_checked_for_rows_on_a_gpu():
    x = torch.randn(2, 3, 64, device="cuda")
    got, want = torch.zeros(2, 4, 3, FMT.nbytes, dtype=torch.uint8, device="cuda")
    table, positions = torch.tensor([[3, 1], [2, 0]], dtype=torch.int32), torch.tensor([40, 7])
    with pytest.raises(ValueError, match="a position is 64; must be 0 to 63"):
        kv_append(x, got, table, torch.tensor([64, 7]), FMT)
    with pytest.raises(ValueError, match=r"block_table has shape \[2\]"):
        kv_append(x, got, table[0], positions, FMT)
    assert not got.any()
    kv_append(x, got, table, positions, FMT)
    kv_append(x, want, table.cuda(), positions.cuda(), FMT, backend="reference")
    assert torch.equal(got, want)


@pytest.mark.gpu
def test_runs_on_the_current_stream():
    x = torch.randn(64, 8, 128, device="cuda").half()
    fmt = BlockFormat(128, 40)
    got, want = torch.zeros(2, 64, 8, fmt.nbytes, dtype=torch.uint8, device="cuda")
    table = torch.arange(64, dtype=torch.int32, device="cuda").view(64, 1)
    positions = torch.zeros(64, dtype=torch.int64, device="cuda")
    kv_append(x + 1, want, table, positions, fmt)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.add_(1)
        kv_append(x, got, table, positions, fmt)
    stream.synchronize()
    assert torch.equal(got, want)

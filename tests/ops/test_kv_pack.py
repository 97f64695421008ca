"""What kv_pack writes: exactly `keep` entries per row, in the documented bytes, nothing else."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gossamer.ops import OPS, BlockFormat, kv_pack, kv_unpack
from tests.ops.kv import (
    FLOATS,
    allowed_error,
    calls,
    read,
    row_bytes,
    rows,
    selection,
    token_bytes,
    wanted,
)
from tests.ops.kv_pack_errors import BAD_CALLS, BAD_VALUES, CHANNEL, FMT
from tests.ops.spec import LAYOUTS, runs

__all__ = ["BAD_CALLS"]  # which the contract tests look up here, with BAD_VALUES

RUNS = runs("kv_pack")


def packed(call, backend, device, fill=0):
    """Blocks that were full of `fill` before."""
    moved = call.to(device)
    shape = (call.num_blocks, call.x.shape[1], call.fmt.nbytes)
    blocks = torch.full(shape, fill, dtype=torch.uint8, device=device)
    kv_pack(moved.x, blocks, moved.slots, call.fmt, **moved.ranking, backend=backend)
    return blocks.cpu()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@settings(max_examples=150, deadline=None)
@given(call=calls())
def test_what_comes_back_is_what_was_selected(op, backend, device, call):
    blocks = packed(call, backend, device)
    back = read(blocks, call)
    mask = selection(call) & (call.slots >= 0).numpy()[:, None, None]
    x = call.x.float()
    if call.fmt.values in FLOATS:
        stored = x.to(FLOATS[call.fmt.values]).double().numpy()
        assert np.array_equal(back, np.where(mask, stored, 0))
        return
    want = np.where(mask, wanted(blocks, call), 0)
    assert (np.abs(back - want) <= np.where(mask, allowed_error(blocks, call), 0)).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@settings(max_examples=100, deadline=None)
@given(call=calls())
def test_every_backend_writes_the_same_bytes_and_no_others(op, backend, device, call):
    fill = 0xA5
    blocks = packed(call, backend, device, fill)
    assert torch.equal(blocks, packed(call, "reference", "cpu", fill))
    row = 0 if call.fmt.keep is None else call.fmt.head_dim // 8
    shared = {
        "none": 0,
        "row": 64,
        "channel": 4 * call.fmt.head_dim,
        "group": 4 * call.fmt.head_dim,
    }
    size = 32 * row + 32 * row_bytes(call.fmt) + shared[call.fmt.scales]
    assert blocks.shape[-1] == size
    # A slot that was not named keeps all its bytes.
    untouched = torch.ones(call.num_blocks * 32, dtype=torch.bool)
    untouched[call.slots[call.slots >= 0]] = False
    untouched = untouched.view(-1, 32)
    by_token = blocks[:, :, torch.from_numpy(token_bytes(call.fmt))]  # [blocks, heads, 32, n]
    assert (by_token.transpose(1, 2)[untouched] == fill).all()
    assert (blocks[untouched.all(1)] == fill).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_the_bytes_of_a_small_block(op, backend, device):
    """Bit order, chunk order, codes and scale, written out by hand."""
    x = torch.zeros(1, 1, 16, device=device)
    x[0, 0, [1, 3, 10]] = torch.tensor([4.0, -8.0, 1.0], device=device)
    fmt = BlockFormat(16, 3, "int4")
    blocks = torch.zeros(1, 1, fmt.nbytes, dtype=torch.uint8, device=device)
    kv_pack(x, blocks, torch.tensor([5], device=device), fmt, backend=backend)
    got = {i: b for i, b in enumerate(blocks.flatten().tolist()) if b}
    # Row 5 of the bitmap: channels 1, 3 and 10. Codes 4, -8, 1 of scale 1: 0x184, little-endian.
    bitmap, values, scale = 5 * 2, 32 * 2 + 5 * 4, 32 * 2 + 32 * 4 + 5 * 2
    assert got == {
        bitmap: 0b1010,
        bitmap + 1: 0b100,
        values: 0x84,
        values + 1: 0x01,
        scale + 1: 0x3C,
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_rows_may_lie_anywhere(op, backend, device, dtype, layout):
    values = torch.randn(37, 3, 80, device=device).to(dtype)
    x = LAYOUTS[layout](values)
    fmt = BlockFormat(80, 24, "int8")
    slots = torch.randperm(64, device=device)[:37]
    scores = LAYOUTS[layout](torch.rand(37, 3, 80, device=device))
    weights = LAYOUTS[layout](torch.rand(3, 80, device=device))
    for ranking in ({}, {"scores": scores}, {"weights": weights}):
        got, want = torch.zeros(2, 2, 3, fmt.nbytes, dtype=torch.uint8, device=device)
        kv_pack(x, got, slots, fmt, **ranking, backend=backend)
        dense = {name: t.clone().contiguous() for name, t in ranking.items()}
        kv_pack(x.clone().contiguous(), want, slots, fmt, **dense, backend="reference")
        assert torch.equal(got, want)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_blocks_may_be_part_of_something_larger(op, backend, device):
    """K and V of a page side by side, say; the memory around a block is not touched."""
    fmt = BlockFormat(64, 24, "int4")
    memory = torch.full((5, 3, fmt.nbytes + 64), 0xA5, dtype=torch.uint8, device=device)
    x, slots = torch.randn(64, 3, 64, device=device), torch.arange(64, 128, device=device)
    kv_pack(x, memory[..., 32 : 32 + fmt.nbytes], slots, fmt, backend=backend)
    alone = torch.zeros(5, 3, fmt.nbytes, dtype=torch.uint8, device=device)
    kv_pack(x, alone, slots, fmt, backend="reference")
    assert torch.equal(memory[2:4, :, 32 : 32 + fmt.nbytes], alone[2:4])
    memory[2:4, :, 32 : 32 + fmt.nbytes] = 0xA5
    assert (memory == 0xA5).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_nan_and_infinity(op, backend, device, dtype):
    """NaN is kept first, then infinity; with a scale, either makes the whole row NaN."""
    x = torch.randn(4, 1, 64, device=device).to(dtype)
    x[0, 0, 40], x[0, 0, 50], x[1, 0, 3] = float("inf"), float("nan"), -float("inf")
    if dtype != torch.float32:  # several kinds of NaN rank alike
        bits = x.view(torch.int16)
        bits[2, 0, 10:20] = torch.tensor([0x7FFF, -1], dtype=torch.int16, device=device).repeat(5)
        bits[2, 0, 15] = 0x7FC1
    slots = torch.arange(4, device=device)
    for values in ("fp16", "int4", "fp8_e4m3"):
        fmt = BlockFormat(64, 2, values)
        blocks = torch.zeros(1, 1, fmt.nbytes, dtype=torch.uint8, device=device)
        kv_pack(x, blocks, slots, fmt, backend=backend)
        if values != "fp16":  # which NaN it is differs without a scale
            want = torch.zeros_like(blocks)
            kv_pack(x, want, slots, fmt, backend="reference")
            assert torch.equal(blocks, want)
        back = kv_unpack(blocks, slots, fmt, torch.float32).cpu()[:, 0]
        kept = [row.nonzero().flatten().tolist() for row in back]
        assert kept[0] == [40, 50]
        assert 3 in kept[1]
        if dtype != torch.float32:
            assert kept[2] == [10, 11]
        if values == "fp16":
            assert back[0, 40] == float("inf")
            assert back[0, 50].isnan()
            assert back[1, 3] == -float("inf")
        else:
            assert back[0, kept[0]].isnan().all()
            assert back[1, kept[1]].isnan().all()
        assert back[3].isfinite().all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("scales", ["channel", "group"])
def test_a_nan_spoils_what_shares_its_scale_and_no_more(op, backend, device, scales):
    x = torch.randn(32, 1, 64, device=device)
    x[7, 0, 33] = float("nan")
    fmt = BlockFormat(64, None, "int4", scales)
    blocks = torch.zeros(1, 1, fmt.nbytes, dtype=torch.uint8, device=device)
    slots = torch.arange(32, device=device)
    kv_pack(x, blocks, slots, fmt, backend=backend)
    broken = kv_unpack(blocks, slots, fmt, torch.float32).isnan()[:, 0].cpu()
    want = torch.zeros(32, 64, dtype=torch.bool)
    want[(slice(None), 33) if scales == "channel" else (7, slice(32, 64))] = True
    assert torch.equal(broken, want)


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_too_large_for_a_scale_is_nan_not_a_smaller_number(op, backend, device):
    x = torch.full((1, 1, 64), 1e7, device=device)
    fmt = BlockFormat(64, None, "int4")
    blocks = torch.zeros(1, 1, fmt.nbytes, dtype=torch.uint8, device=device)
    slots = torch.tensor([0], device=device)
    kv_pack(x, blocks, slots, fmt, backend=backend)
    assert kv_unpack(blocks, slots, fmt, torch.float32).isnan().all()
    assert blocks[0, 0, -64:-62].tolist() == [0x00, 0x7E]


@pytest.mark.parametrize("backend", OPS["kv_pack"].available("cpu"))
def test_a_bad_slot_is_found_before_anything_is_written(backend):
    for args, _, message in BAD_VALUES:
        if "slot" not in message:
            continue
        full = args[1].fill_(0xA5)
        with pytest.raises(ValueError, match="slot"):
            OPS["kv_pack"](torch.randn(args[0].shape), full, *args[2:], backend=backend)
        assert (full == 0xA5).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_signed_rows_use_the_larger_end(bits):
    """-2^(b-1) for the largest entry: a finer step than a symmetric range where one is longer."""
    x = torch.tensor([8.0, -3.0, 2.0, 0.5, 0, 0, 0, 0]).view(1, 1, 8)
    fmt = BlockFormat(8, None, f"int{bits}")
    blocks = torch.zeros(1, 1, fmt.nbytes, dtype=torch.uint8)
    kv_pack(x, blocks, torch.tensor([0]), fmt)
    scale = blocks[0, 0, -64:-62].view(torch.float16).item()
    step = max(8 / 2 ** (bits - 1), 3 / (2 ** (bits - 1) - 1))
    assert -step * 1.001 <= scale <= -step


def test_rows_must_be_as_wide_as_the_format_says():
    blocks = torch.zeros(1, 1, BlockFormat(128, 24).nbytes, dtype=torch.uint8)
    with pytest.raises(ValueError, match="x has rows of 128; must be 64, the head_dim of the form"):
        kv_pack(torch.zeros(1, 1, 128), blocks, torch.tensor([0]), BlockFormat(64, 24))


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", [FMT, BlockFormat(64), CHANNEL], ids=str)
def test_replays_in_a_cuda_graph_and_never_waits(fmt):
    x = torch.randn(64, 3, 64, device="cuda")
    slots = torch.arange(64, device="cuda")
    got, want = torch.zeros(2, 4, 3, fmt.nbytes, dtype=torch.uint8, device="cuda")
    kv_pack(x, got, slots, fmt)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        kv_pack(x, got, slots, fmt)
        kv_unpack(got, slots, fmt)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kv_pack(x, got, slots, fmt)
    x.copy_(torch.randn_like(x))
    slots.copy_(slots + 64)
    graph.replay()
    torch.cuda.synchronize()
    kv_pack(x, want, slots, fmt, backend="reference")
    assert torch.equal(got[2:], want[2:])


@pytest.mark.gpu
def test_a_broken_block_of_slots_on_the_gpu_is_skipped_whole():
    x = torch.randn(32, 3, 64, device="cuda")
    blocks = torch.full((4, 3, CHANNEL.nbytes), 0xA5, dtype=torch.uint8, device="cuda")
    slots = torch.arange(32, device="cuda")
    slots[31] = -1
    kv_pack(x, blocks, slots, CHANNEL, backend="cuda")
    assert (blocks == 0xA5).all()


@pytest.mark.gpu
def test_slots_on_the_host_are_checked_for_rows_on_a_gpu():
    blocks = torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8, device="cuda")
    x = torch.randn(2, 3, 64, device="cuda")
    with pytest.raises(ValueError, match="slot 5 is repeated"):
        kv_pack(x, blocks, torch.tensor([5, 5]), FMT)
    assert not blocks.any()
    kv_pack(x, blocks, torch.tensor([5, 9]), FMT)
    assert blocks.any()


@pytest.mark.gpu
def test_a_slot_out_of_range_on_the_gpu_is_skipped():
    call = [torch.randn(3, 3, 64, device="cuda"), None, None, FMT]
    got, want = torch.zeros(2, 4, 3, FMT.nbytes, dtype=torch.uint8, device="cuda")
    for blocks, slots in ((got, [5, 1 << 40, -7]), (want, [5, -1, -1])):
        call[1:3] = blocks, torch.tensor(slots, device="cuda")
        kv_pack(*call, backend="cuda")
    assert torch.equal(got, want)


@pytest.mark.gpu
def test_many_rows_on_the_gpu():
    """More than one wave of thread blocks, bytes beyond 2^31."""
    fmt = BlockFormat(128, 40)
    tokens, heads = 1 << 20, 24
    x = rows("ties", (4096, heads, 128)).half().cuda()
    blocks = torch.zeros(tokens // 32, heads, fmt.nbytes, dtype=torch.uint8, device="cuda")
    assert blocks.numel() > 1 << 31
    repeated = x.expand(tokens // 4096, *x.shape).reshape(tokens, heads, 128)
    kv_pack(repeated, blocks, torch.arange(tokens, device="cuda"), fmt)
    first = blocks[:128].clone()
    kv_pack(x, first, torch.arange(4096, device="cuda"), fmt, backend="reference")
    assert torch.equal(
        blocks.view(-1, 128, *first.shape[1:]), first.expand(tokens // 4096, *first.shape)
    )

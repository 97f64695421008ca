"""Dense rows of codes: their bytes by hand, coded rows, and what NaN and infinity do to them."""

import numpy as np
import pytest
import torch

from gossamer.ops import BlockFormat, kv_pack, kv_unpack
from tests.ops.spec import runs

RUNS = runs("kv_pack")
STEPS = {8: 0.0308, 4: 0.3352, 3: 0.5860, 2: 0.9957}  # of the documentation


def packed(x, tokens, fmt, backend, device):
    """One block of one head."""
    blocks = torch.zeros(1, 1, fmt.nbytes, dtype=torch.uint8, device=device)
    kv_pack(x.to(device), blocks, torch.tensor(tokens, device=device), fmt, backend=backend)
    return blocks


def unpacked(blocks, tokens, fmt, backend):
    slots = torch.tensor(tokens, device=blocks.device)
    return kv_unpack(blocks, slots, fmt, torch.float32, backend=backend)[:, 0].cpu()


def nonzero(blocks):
    return {i: b for i, b in enumerate(blocks.flatten().tolist()) if b}


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_the_bytes_of_a_whole_chunk(op, backend, device):
    """int8: channel 8 g + c of token t at byte g of cell c of token t."""
    x = torch.full((1, 1, 16), -128.0)  # codes are stored from 0 on
    x[0, 0, 2], x[0, 0, 13] = -127, 127
    got = packed(x, [5], BlockFormat(16, None, "int8"), backend, device)
    # A scale of float16: 1 is 0x3C00. The largest entry is negative: it stays positive.
    assert nonzero(got) == {5 * 16 + 2 * 2: 1, 5 * 16 + 2 * 5 + 1: 255, 32 * 16 + 5 * 2 + 1: 0x3C}


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_the_bytes_of_groups_and_of_half_a_chunk(op, backend, device):
    """Bits of all kinds, and the third bit of three in a byte of its own."""
    x = torch.zeros(2, 1, 24)
    fmt = BlockFormat(24, None, "3x8+4x8+2x8")
    # The value of a code is code - (2^b - 1) / 2, the middle of its interval.
    x[:, 0, :8], x[:, 0, 8:16], x[:, 0, 16:] = -3.5, -7.5, -1.5
    x[0, 0, 3], x[1, 0, 8 + 3], x[1, 0, 16 + 7] = 5 - 3.5, 9 - 7.5, 2 - 1.5
    got = packed(x, [21, 29], fmt, backend, device)
    # A line: 4 bits of the second group, 2 of the first, 2 of the third, the third of the first.
    cell = lambda token, column: 16 * token + 2 * column  # noqa: E731
    assert fmt.nbytes == 32 * 16
    assert nonzero(got) == {
        cell(21, 3): 0b00_01_0000,
        cell(21, 3) + 1: 0b1,
        cell(29, 3): 9,
        cell(29, 7): 0b10_00_0000,
    }
    half = BlockFormat(
        16, None, "4x8+3x8"
    )  # 7 bits, so 8: cells of one byte, shared by tokens 8 apart
    x = torch.full((2, 1, 16), -100.0)  # ends up at the end of the range
    x[0, 0, 6], x[1, 0, 6] = 15 - 7.5, 100
    got = packed(x, [21, 29], half, backend, device)
    assert half.nbytes == 32 * 8
    assert nonzero(got) == {128 + 16 * 5 + 2 * 6: 0x0F, 128 + 16 * 5 + 2 * 6 + 1: 0x0F}


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_the_scale_of_a_coded_row_has_the_least_square_error(op, backend, device):
    """For codes relative to the row's root mean square in standard deviations of its channels."""
    torch.manual_seed(0)
    bits = np.repeat([8, 8, 4, 3, 2, 0], 8)
    x = torch.randn(32, 1, 48) * torch.exp2(torch.arange(-12.0, 16.0).repeat(2)[:32])[:, None, None]
    got = packed(x, list(range(32)), BlockFormat(48, None, "8x16+4x8+3x8+2x8+0x8", "row"),
                 backend, device)  # fmt: skip
    scales = got[0, 0, -64:].cpu().view(torch.float16).numpy().astype(np.float64)
    rows = x[:, 0].double().numpy()[:, :40]
    steps = np.array([STEPS.get(b, 0) for b in bits])[:40]
    unit = np.sqrt(((rows * steps) ** 2).mean(-1)).astype(np.float16).astype(np.float64)
    ends = 2.0 ** (bits[:40] - 1)
    codes = np.clip(np.floor(rows / unit[:, None]), -ends, ends - 1) + 0.5
    want = (rows * codes).sum(-1) / (codes**2).sum(-1)
    assert (np.abs(scales - want) <= want * 2.0**-10).all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_nan_and_infinity_in_coded_rows(op, backend, device, dtype):
    """With a scale they spoil their row; without, they are the ends and the middle of the range."""
    x = torch.randn(4, 1, 24).to(dtype)
    x[0, 0, 3], x[0, 0, 4], x[0, 0, 5] = float("nan"), float("inf"), -float("inf")
    x[1, 0, 20] = float("nan")  # has no bits
    x[2, 0, 9] = -float("inf")
    for scales in ("none", "row"):
        fmt = BlockFormat(24, None, "4x8+2x8+0x8", scales)
        blocks = packed(x, [0, 1, 2, 3], fmt, backend, device)
        assert torch.equal(blocks.cpu(), packed(x, [0, 1, 2, 3], fmt, "reference", "cpu"))
        back = unpacked(blocks, [0, 1, 2, 3], fmt, backend)
        broken = scales == "row"
        assert back.isnan().all(1).tolist() == [broken, False, broken, False]
        assert back[[1, 3]].isfinite().all()
        assert not back[[1, 3], 16:].any()
        if not broken:
            assert back[0, 3:6].tolist() == [0.5, 7.5, -7.5]
            assert back[2, 9] == -1.5


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("values", ["int8", "int4", "int3", "int2", "fp8_e4m3"])
def test_a_row_that_cannot_be_scaled_is_nan_and_its_neighbours_are_not(op, backend, device, values):
    x = torch.randn(3, 1, 40)
    x[1, 0, 39] = float("nan")
    fmt = BlockFormat(40, None, values)
    blocks = packed(x, [7, 8, 15], fmt, backend, device)
    assert torch.equal(blocks.cpu(), packed(x, [7, 8, 15], fmt, "reference", "cpu"))
    back = unpacked(blocks, [7, 8, 15], fmt, backend)
    assert back.isnan().all(1).tolist() == [False, True, False]
    assert back[[0, 2]].isfinite().all()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("scales", ["none", "row"])
def test_intervals_end_at_whole_steps(op, backend, device, scales):
    """A number just below a whole step is in the interval below; zero is in the one above."""
    x = torch.zeros(1, 1, 16)
    just = torch.tensor(1.0).nextafter(torch.tensor(0.0)).item()
    x[0, 0, :8] = torch.tensor([0.0, -1e-30, 1.0, just, -1.0, -just, 127.5, -128.5])
    fmt = BlockFormat(16, None, "8x16", scales)
    blocks = packed(x, [3], fmt, backend, device)
    assert torch.equal(blocks.cpu(), packed(x, [3], fmt, "reference", "cpu"))
    if scales == "none":
        want = [0.5, -0.5, 1.5, 0.5, -0.5, -0.5, 127.5, -127.5]
        assert unpacked(blocks, [3], fmt, backend)[0, :8].tolist() == want


@pytest.mark.gpu
@pytest.mark.parametrize("values", ["int8", "int4", "int3", "8x16+4x64+2x40+0x8"])
@pytest.mark.parametrize("scales", ["row", "channel", "group"])
def test_codes_replay_in_a_cuda_graph_and_never_wait(values, scales):
    if "x" in values and scales != "row":
        pytest.skip("no such format")
    fmt = BlockFormat(128, None, values, scales)
    x = torch.randn(96, 3, 128, device="cuda").half()
    slots = torch.arange(96, device="cuda")
    got, want = torch.zeros(2, 6, 3, fmt.nbytes, dtype=torch.uint8, device="cuda")
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
    slots.copy_(slots + 96)
    graph.replay()
    torch.cuda.synchronize()
    kv_pack(x, want, slots, fmt, backend="reference")
    assert torch.equal(got[3:], want[3:])

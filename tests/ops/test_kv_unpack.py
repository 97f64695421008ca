"""What kv_unpack reads: the same on every backend, for any bytes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.ops import OPS, BlockFormat, kv_pack, kv_unpack
from tests.ops.kv import calls, formats
from tests.ops.spec import runs

RUNS = runs("kv_unpack")
FMT = BlockFormat(64, 24)


def _args(**changes):
    args = {
        "blocks": torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8),
        "slots": torch.tensor([5, 40]),
        "head_dim": 64,
        "keep": 24,
        "values": "fp16",
        "scales": "none",
        "dtype": torch.float16,
    }
    assert set(changes) <= set(args)
    return tuple((args | changes).values())


BAD_CALLS = [
    (_args(blocks=None), TypeError, "kv_unpack: blocks is NoneType; must be a torch.Tensor"),
    (
        _args(blocks=torch.zeros(4, 3, FMT.nbytes)),
        TypeError,
        "kv_unpack: blocks has dtype float32; must be uint8",
    ),
    (_args(keep=100), ValueError, "kv_unpack: keep is 100; must be 1 to 64, the head_dim"),
    (
        _args(keep=32),
        ValueError,
        f"kv_unpack: blocks has shape [4, 3, {FMT.nbytes}]; must be [blocks, heads, 2304], "
        "the bytes of a block of this format",
    ),
    (
        _args(keep=None, values="4x56"),
        ValueError,
        "kv_unpack: values is '4x56', which is 56 channels; must add up to 64, the head_dim",
    ),
    (
        _args(keep=None, values="6x64"),
        ValueError,
        "kv_unpack: '6x64' has 6 bits; must be 8, 4, 3, 2 or 0",
    ),
    (
        _args(slots=torch.tensor([[5]])),
        ValueError,
        "kv_unpack: slots has 2 dimensions; must have 1",
    ),
    (
        _args(dtype=torch.int8),
        TypeError,
        "kv_unpack: dtype is torch.int8; "
        "must be one of torch.float32, torch.float16, torch.bfloat16",
    ),
]
BAD_VALUES = [
    (
        _args(slots=torch.tensor([5, 128])),
        ValueError,
        "kv_unpack: a slot is 128; must be 0 to 127, or -1 for none",
    ),
    (
        _args(blocks=torch.zeros(0, 3, FMT.nbytes, dtype=torch.uint8)),
        ValueError,
        "kv_unpack: a slot is 5; must be -1, as there are no blocks",
    ),
]


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@settings(max_examples=60, deadline=None)
@given(call=calls(), data=st.data())
def test_every_backend_reads_the_same(op, backend, device, dtype, call, data):
    blocks = torch.zeros(call.num_blocks, call.x.shape[1], call.fmt.nbytes, dtype=torch.uint8)
    kv_pack(call.x, blocks, call.slots, call.fmt, **call.ranking, backend="reference")
    asked = data.draw(st.lists(st.integers(-1, 32 * call.num_blocks - 1), max_size=40))
    slots = torch.tensor(asked, dtype=torch.int64)  # also empty slots, also twice
    got = kv_unpack(blocks.to(device), slots.to(device), call.fmt, dtype, backend=backend)
    want = kv_unpack(blocks, slots, call.fmt, dtype, backend="reference")
    assert got.is_contiguous()
    assert got.dtype == dtype
    assert torch.equal(got.cpu(), want)
    assert not got[slots.to(device) < 0].any()


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
@settings(max_examples=60, deadline=None)
@given(fmt=formats(), seed=st.integers(0, 2**31))
def test_any_bytes_can_be_read(op, backend, device, fmt, seed):
    """Bitmaps with any number of bits, NaN scales: nothing is read from outside of the block."""
    torch.manual_seed(seed)
    memory = torch.randint(0, 256, (3, 2, fmt.nbytes + 32), dtype=torch.uint8)
    slots = torch.arange(96)
    inside = memory[..., 16:-16]
    got = kv_unpack(inside.to(device), slots.to(device), fmt, torch.float32, backend=backend).cpu()
    memory[..., :16], memory[..., -16:] = 0, 0
    want = kv_unpack(inside, slots, fmt, torch.float32, backend="reference")
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(0), want.nan_to_num(0))


def test_meta_tensors_give_shapes_only():
    blocks = torch.empty(4, 3, FMT.nbytes, dtype=torch.uint8, device="meta")
    got = kv_unpack(blocks, torch.empty(7, dtype=torch.int64, device="meta"), FMT)
    assert (got.shape, got.dtype, got.device.type) == ((7, 3, 64), torch.float16, "meta")


def test_exports_with_any_number_of_tokens():
    class Model(torch.nn.Module):
        def forward(self, x, blocks, slots):
            kv_pack(x, blocks, slots, FMT)
            return kv_unpack(blocks, slots, FMT, torch.float32)

    def arguments(tokens):
        blocks = torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8)
        return torch.randn(tokens, 3, 64), blocks, torch.randperm(128)[:tokens]

    tokens = torch.export.Dim("tokens")
    dynamic = ({0: tokens}, None, {0: tokens})
    program = torch.export.export(Model(), arguments(5), dynamic_shapes=dynamic)
    args = arguments(9)
    expected = Model()(args[0], args[1].clone(), args[2])
    assert torch.equal(program.module()(*args), expected)


def test_pack_and_unpack_compile_to_one_graph():
    torch._dynamo.reset()

    def model(x, blocks, slots):
        kv_pack(x, blocks, slots, FMT)
        return kv_unpack(blocks, slots, FMT, torch.float32) * 2

    args = torch.randn(5, 3, 64), torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8), torch.arange(5)
    want = model(args[0], args[1].clone(), args[2])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*args), want)
    assert args[1].any()  # the caller's blocks, not a copy


@pytest.mark.parametrize(("op", "backend", "device"), RUNS)
def test_no_blocks_at_all(op, backend, device):
    blocks = torch.zeros(0, 3, FMT.nbytes, dtype=torch.uint8, device=device)
    got = kv_unpack(blocks, torch.tensor([-1, -1], device=device), FMT, backend=backend)
    assert got.shape == (2, 3, 64)
    assert not got.any()
    kv_pack(torch.zeros(1, 3, 64, device=device), blocks, torch.tensor([-1], device=device), FMT)


@pytest.mark.gpu
def test_slots_on_the_host_are_checked():
    blocks = torch.zeros(4, 3, FMT.nbytes, dtype=torch.uint8, device="cuda")
    assert kv_unpack(blocks, torch.tensor([5, 40]), FMT).is_cuda
    with pytest.raises(ValueError, match="a slot is 128; must be 0 to 127"):
        kv_unpack(blocks, torch.tensor([5, 128]), FMT)
    with pytest.raises(ValueError, match="slots has 2 dimensions; must have 1"):
        kv_unpack(blocks, torch.tensor([[5]]), FMT)


def test_backends():
    assert OPS["kv_unpack"].backends == ("reference", "cpu", "cuda")

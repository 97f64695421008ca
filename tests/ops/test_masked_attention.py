"""What masked_attention computes: every backend against a float64 oracle on the dense mask."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gossamer.ops import masked_attention
from tests.ops.masked import Call, check, make_call
from tests.ops.masked_errors import BAD_CALLS, BAD_VALUES
from tests.ops.spec import LAYOUTS, poison, runs

__all__ = ["BAD_CALLS", "BAD_VALUES"]  # which the contract tests look up here

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
# The CUDA kernel takes less and has tests of its own.
RUNS = [run.values[1:] for run in runs("masked_attention") if run.values[1] != "cuda"]
by_backend = pytest.mark.parametrize(
    ("backend", "device"),
    [pytest.param(b, d, marks=pytest.mark.gpu if d == "cuda" else []) for b, d in RUNS],
)
HEAD_DIMS = (32, 40, 64, 80, 96, 128, 256)


def causal(q_len: int, kv_len: int) -> torch.Tensor:
    return torch.ones(q_len, kv_len).tril(kv_len - q_len).bool()


def patchy(q_len: int, kv_len: int) -> torch.Tensor:
    """Full, partial and empty tiles, a row that sees nothing, keys that nobody sees."""
    seen = torch.rand(q_len, kv_len) < 0.2
    seen[:, : kv_len // 3] = True
    seen[: q_len // 2, kv_len // 2 :] = False
    seen[:, -1] = False
    seen[q_len // 2] = False
    return seen


def run(call: Call, backend: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    got = call.to(device).attend(backend)
    check(call, got)
    return got


@by_backend
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_dims(backend, device, dtype, head_dim):
    if (backend, device, dtype) == ("triton", "cpu", BF16) and head_dim != 64:
        return  # the interpreter multiplies float32 then, as in the cases of that
    run(make_call(patchy(70, 100), head_dim=head_dim, heads=1, dtype=dtype), backend, device)


@by_backend
@pytest.mark.parametrize("tile", [(16, 32), (32, 128), (64, 32), (128, 64), (128, 128)])
def test_tiles(backend, device, tile):
    run(make_call(patchy(150, 200), heads=1, tile=tile), backend, device)


@by_backend
@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(1, 1), (1, 130), (63, 65), (65, 63), (64, 64), (130, 1)]
)
def test_lengths(backend, device, q_len, kv_len):
    for seen in (causal(q_len, kv_len), patchy(q_len, kv_len), torch.ones(q_len, kv_len).bool()):
        run(make_call(seen, heads=1), backend, device)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_thousand_tokens(backend, dtype):
    """Many panels, strips and threads."""
    for tile in ((64, 64), (128, 32)):
        run(make_call(patchy(1000, 1000), heads=3, dtype=dtype, tile=tile), backend, "cpu")


@pytest.mark.parametrize("isa_width", [15, 16, 17, 31, 32, 33, 127, 129])
def test_strips_and_panels_on_the_cpu(isa_width):
    """Queries and keys around the sizes of vectors and of what is multiplied at once."""
    for seen in (torch.ones(isa_width, isa_width + 3).bool(), patchy(isa_width + 1, isa_width)):
        run(make_call(seen, heads=1, tile=(16, 32)), "cpu", "cpu")


@by_backend
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_heads_that_share_keys(backend, device, kv_heads):
    run(make_call(patchy(40, 60), batch=2, heads=6, kv_heads=kv_heads), backend, device)


@by_backend
@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (2, 4)], ids=str)
def test_masks_of_batches_and_heads(backend, device, shape):
    seen = torch.stack([patchy(40, 70) for _ in range(shape[0] * shape[1])]).view(*shape, 40, 70)
    seen[-1, -1] = False  # a head that sees nothing at all
    run(make_call(seen, batch=2, heads=4, kv_heads=2), backend, device)


@by_backend
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_softcap_and_bias(backend, device, dtype):
    seen = patchy(70, 90)
    for options in (
        {"softcap": 0.7},
        {"bias": torch.randn(70, 90)},
        {"bias": torch.randn(2, 1, 90).half(), "softcap": 3.0},
        {"bias": torch.randn(90, 70).bfloat16().T},
        {"bias": torch.randn(1, 2, 70, 1)},
    ):
        run(make_call(seen, dtype=dtype, **options), backend, device)


@by_backend
def test_a_bias_of_minus_infinity_hides_keys(backend, device):
    seen, bias = patchy(70, 90), torch.randn(70, 90)
    bias[torch.rand(70, 90) < 0.3] = -torch.inf
    bias[3] = -torch.inf
    out, lse = run(make_call(seen, bias=bias), backend, device)
    assert lse[0, 0, 3] == -torch.inf
    assert not out[0, 0, 3].any()


@by_backend
@pytest.mark.parametrize("scale", [-0.2, 0.0, 30.0])
def test_scales(backend, device, scale):
    """Of any sign; at 30 the softmax is nearly a choice, and its weights reach into nothing."""
    call = replace(make_call(patchy(70, 90)), scale=scale)
    got = call.to(device).attend(backend)
    if scale < 30:
        return check(call, got)
    want = call.attend("reference")
    torch.testing.assert_close(got[0].cpu(), want[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got[1].cpu(), want[1], rtol=1e-5, atol=1e-5)
    return None


@by_backend
def test_nothing_to_see(backend, device):
    for q_len, kv_len, batch in ((0, 10, 1), (10, 0, 1), (10, 10, 0), (0, 0, 1)):
        call = make_call(torch.ones(q_len, kv_len).bool(), batch=batch)
        run(call, backend, device)
    run(make_call(torch.zeros(70, 70).bool()), backend, device)


@by_backend
@pytest.mark.parametrize("layout", ["contiguous", "misaligned", "sliced_rows", "expanded"])
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
@pytest.mark.usefixtures("poisoned")
def test_layouts_in_a_sea_of_nan(backend, device, layout, dtype):
    """Nothing beyond the ends is read, and every element of the results is written."""
    plain = make_call(patchy(70, 100), batch=2, heads=2, kv_heads=1, head_dim=40, dtype=dtype)
    place = LAYOUTS[layout]
    call = replace(plain, q=place(plain.q), k=place(plain.k), v=place(plain.v)).to(device)
    before = [t.clone() for t in (call.q, call.k, call.v)]
    poison([call.q.shape, call.q.shape[:3]], dtype, device)
    check(call, call.attend(backend))
    assert all(map(torch.equal, (call.q, call.k, call.v), before))


@by_backend
def test_tokens_before_heads(backend, device):
    """Views of [batch, tokens, heads, head_dim], as projections make them."""
    call = make_call(patchy(70, 100), batch=2, heads=4, kv_heads=2, head_dim=32)
    moved = {n: getattr(call, n).transpose(1, 2).contiguous().transpose(1, 2) for n in "qkv"}
    run(replace(call, **moved), backend, device)


@by_backend
def test_keys_that_no_tile_holds_may_be_nan(backend, device):
    seen = torch.zeros(70, 200, dtype=torch.bool)
    seen[:, :60] = torch.rand(70, 60) < 0.5
    call = make_call(seen, tile=(64, 32))
    want = call.to(device).attend(backend)
    call.k[:, :, 64:], call.v[:, :, 64:] = torch.nan, torch.nan
    got = call.to(device).attend(backend)
    assert all(map(torch.equal, got, want))


@by_backend
def test_the_order_of_rows_does_not_matter(backend, device):
    call = make_call(patchy(150, 90), tile=(16, 32)).to(device)
    want = call.attend(backend)
    order = torch.randperm(call.tiles["order"].numel()).int().to(device)
    order = order.view_as(call.tiles["order"])
    got = replace(call, tiles=call.tiles | {"order": order}).attend(backend)
    assert all(map(torch.equal, got, want))


@by_backend
def test_what_tiles_leave_open(backend, device):
    """More tiles than a row needs, all bits on beyond the ends, unused patterns and tiles."""
    call = make_call(patchy(70, 90), tile=(64, 64))
    tiles = dict(call.tiles)
    tiles["bits"] = torch.cat([tiles["bits"], torch.full((1, 64, 2), -1, dtype=torch.int32)])
    more = torch.tensor([[0] * 3, [-1] * 3], dtype=torch.int32)
    tiles["tiles"] = torch.cat([tiles["tiles"], more], dim=1)
    tiles["work"] = torch.zeros(tiles["order"].numel(), 16, dtype=torch.int32)
    want = call.to(device).attend(backend)
    if backend == "cuda":
        tiles["work"] = None
    got = replace(call, tiles=tiles).to(device).attend(backend)
    assert all(map(torch.equal, got, want))


@by_backend
def test_without_lse(backend, device):
    for seen in (patchy(70, 90), torch.ones(0, 10).bool()):
        call = make_call(seen).to(device)
        want, _ = call.attend(backend)
        out, lse = masked_attention(*call.args()[:-1], False, backend=backend)
        assert lse is None
        assert torch.equal(out, want)


def test_is_torch_attention():
    call = make_call(causal(100, 100), heads=4, kv_heads=2)
    want = scaled_dot_product_attention(call.q, call.k, call.v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(call.attend()[0], want)


def test_threads_agree_with_one():
    call = make_call(patchy(500, 500), batch=2, heads=3)
    want, threads = call.attend("cpu"), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert all(map(torch.equal, call.attend("cpu"), want))
    finally:
        torch.set_num_threads(threads)


def test_heads_packed_in_several_rounds():
    """More keys and values than are packed at once."""
    kv_len = 20_000
    seen = torch.zeros(3, kv_len, dtype=torch.bool)
    seen[:, torch.randint(kv_len, (50,))] = True
    run(make_call(seen, heads=5, head_dim=128), "cpu", "cpu")


@by_backend
@pytest.mark.parametrize("with_lse", [True, False])
def test_compiles_to_one_graph(backend, device, with_lse):
    torch._dynamo.reset()
    call = make_call(patchy(70, 90)).to(device)

    def model(q, *args):
        out, lse = masked_attention(q * 2, *args, with_lse, backend=backend)
        return (out + 1, lse * 2) if with_lse else (out + 1,)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    args = call.args()[:-1]
    assert all(map(torch.equal, compiled(*args), model(*args)))


def test_meta_tensors_give_shapes_only():
    call = make_call(patchy(70, 90), dtype=BF16)
    out, lse = call.to("meta").attend()
    assert (out.shape, out.dtype, out.device.type) == (call.q.shape, BF16, "meta")
    assert (lse.shape, lse.dtype, lse.device.type) == (call.q.shape[:3], F32, "meta")

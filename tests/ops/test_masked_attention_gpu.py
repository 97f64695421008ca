"""The CUDA kernel of masked_attention: every tile size, odd sizes, cut rows, streams, graphs."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from gossamer.masks import Causal, Documents, Mask, Sliding, TileMap, named, per_batch, per_head
from gossamer.masks.work import work_list
from gossamer.ops import masked_attention
from gossamer.ops.masked_attention import CUDA_TILES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

F16, BF16 = torch.float16, torch.bfloat16
TOLERANCE = {F16: 1e-3, BF16: 8e-3}
MASKS = (
    *("full", "causal", "sliding", "dilated", "strided", "fixed", "longformer", "bigbird"),
    *("prefix-lm", "block-diagonal", "documents", "streaming"),
    *("stof-sliding", "stof-dilated", "stof-longformer", "stof-bigbird"),
)
SIZES = (1, 63, 65, 1000, 4097)
by_tile = pytest.mark.parametrize("tile", CUDA_TILES, ids=lambda t: f"{t[0]}x{t[1]}")


@dataclass(frozen=True, eq=False)
class Call:
    """q, k, v and a mask. limit: the most tiles of a piece; None: whole rows by `order`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    tile: tuple[int, int] = (64, 64)
    limit: int | None = 1 << 20
    scale: float = 0.125
    softcap: float = 0.0

    def map(self) -> TileMap:
        return TileMap.build(self.mask, self.q.shape[2], self.k.shape[2], self.tile, "cuda")

    def attend(self, tiles: TileMap | None = None, backend: str = "cuda") -> tuple[Tensor, Tensor]:
        t = tiles or self.map()
        work = None if self.limit is None else work_list(t, self.limit)
        return self.attend_with(t, work, backend)

    def attend_with(
        self, t: TileMap, work: Tensor | None, backend: str = "cuda", with_lse: bool = True
    ) -> tuple[Tensor, Tensor]:
        return masked_attention(
            *(self.q, self.k, self.v, t.offsets, t.tiles, t.bits, t.order, work, None),
            *(self.scale, self.softcap, with_lse),
            backend=backend,
        )

    def expected(self) -> tuple[Tensor, Tensor]:
        """In float64, one batch element at a time; no code is shared with the op."""
        seen = self.mask.dense(self.q.shape[2], self.k.shape[2], "cuda")
        group, outs, sums = self.q.shape[1] // self.k.shape[1], [], []
        for b, (q, k, v) in enumerate(zip(self.q, self.k, self.v, strict=True)):
            keys, values = (x.double().repeat_interleave(group, 0) for x in (k, v))
            scores = q.double() @ keys.transpose(1, 2) * self.scale
            if self.softcap:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            scores.masked_fill_(~seen[b if len(seen) > 1 else 0], -torch.inf)
            sums.append(scores.logsumexp(-1))
            outs.append(scores.softmax(-1).nan_to_num_(0.0) @ values)
        return torch.stack(outs), torch.stack(sums)


def make(
    mask: Mask,
    n: int = 300,
    *,
    kv_len: int | None = None,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    head_dim: int = 64,
    dtype: torch.dtype = F16,
    **options: object,
) -> Call:
    q = torch.randn(batch, heads, n, head_dim, dtype=dtype, device="cuda")
    shape = (batch, kv_heads or heads, n if kv_len is None else kv_len, head_dim)
    k, v = torch.randn(2, *shape, dtype=dtype, device="cuda")
    return Call(q, k, v, mask, scale=head_dim**-0.5, **options)  # type: ignore[arg-type]


def check(call: Call, got: tuple[Tensor, Tensor]) -> None:
    out, lse = got
    assert (out.shape, out.dtype) == (call.q.shape, call.q.dtype)
    assert (lse.shape, lse.dtype) == (call.q.shape[:3], torch.float32)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    want, want_lse = call.expected()
    none = want_lse.isneginf()
    assert torch.equal(lse.isneginf(), none), "-inf in lse"
    assert not out[none].any(), "a query that sees nothing"
    tolerance = TOLERANCE[call.q.dtype]
    torch.testing.assert_close(out.double(), want, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse[~none].double(), want_lse[~none], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask, n, dtype, head_dim):
    call = make(named(mask, n), n, dtype=dtype, head_dim=head_dim)
    want = call.expected()
    for tile in CUDA_TILES:
        for limit in (None, 1 << 20, 3):
            ours = replace(call, tile=tile, limit=limit)
            object.__setattr__(ours, "expected", lambda: want)
            check(ours, ours.attend())


@by_tile
@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize(("q_len", "kv_len"), [(70, 500), (500, 70), (1, 300), (129, 1)])
def test_other_lengths_of_keys(q_len, kv_len, limit, tile):
    mask = Sliding(100, 40)
    check(*_attended(make(mask, q_len, kv_len=kv_len, tile=tile, limit=limit)))


@by_tile
@pytest.mark.parametrize("limit", [1 << 20, 3])
@pytest.mark.parametrize(("batch", "dtype"), [(4, F16), (12, BF16)])
@pytest.mark.parametrize("mask", ["stof-sliding", "stof-longformer"])
def test_many_ctas(mask, batch, dtype, limit, tile):
    """768 of 64 queries, and three times as many: other kernels than for few."""
    call = make(named(mask, 1000), 1000, batch=batch, heads=12, dtype=dtype, tile=tile, limit=limit)
    check(*_attended(call))


def _attended(call: Call) -> tuple[Call, tuple[Tensor, Tensor]]:
    return call, call.attend()


@by_tile
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_groups_of_heads(kv_heads, tile):
    check(*_attended(make(Causal(), heads=6, kv_heads=kv_heads, batch=2, tile=tile, limit=3)))


@by_tile
@pytest.mark.parametrize("limit", [None, 2])
def test_masks_of_heads_and_batches(limit, tile):
    heads = per_head([Sliding(9, 0), Causal(), named("stof-longformer", 300), Sliding(70, 70)])
    both = per_batch([heads, heads & Causal(), Sliding(33, 0)])
    for mask, batch in ((heads, 2), (both, 3), (per_batch([Causal(), Sliding(5, 5)]), 2)):
        call = make(mask, heads=4, kv_heads=2, batch=batch, tile=tile, limit=limit)
        check(*_attended(call))


@by_tile
@pytest.mark.parametrize(("scale", "softcap"), [(0.3, 5.0), (-0.2, 0.0), (0.0, 0.0), (2.0, 50.0)])
def test_scales_and_caps(scale, softcap, tile):
    call = make(Causal(), tile=tile, limit=2)
    check(*_attended(replace(call, scale=scale, softcap=softcap)))


@by_tile
def test_queries_that_see_nothing(tile):
    documents = Documents.from_cu_seqlens([0, 40, 41, 300]) & ~Sliding(0, 0)
    check(*_attended(make(documents, tile=tile, limit=2)))
    nothing = Causal() & ~Causal()
    for limit in (None, 2):
        check(*_attended(make(nothing, 70, tile=tile, limit=limit)))


def test_large_scores_do_not_overflow():
    call = make(Causal(), 500, limit=2)
    check(*_attended(replace(call, scale=20.0)))


def _strided(x: Tensor, kind: str) -> Tensor:
    """The same numbers in other strides."""
    b, h, n, d = x.shape
    if kind == "tokens first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "packed":
        room = torch.full((b, n, 3, h, d), math.nan, dtype=x.dtype, device="cuda")
        room[:, :, 1] = x.transpose(1, 2)
        return room[:, :, 1].transpose(1, 2)
    room = torch.full((b, h + 2, n + 40, d + 8), math.nan, dtype=x.dtype, device="cuda")
    view = room[:, 1:-1, 16:-24, 8:]
    view.copy_(x)
    return view


@by_tile
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["tokens first", "packed", "guarded"])
def test_strides_and_what_lies_around(kind, head_dim, tile):
    """Nothing is read from the NaN between and around the rows."""
    call = make(named("longformer", 333), 333, head_dim=head_dim, batch=2, tile=tile, limit=3)
    moved = replace(call, **{name: _strided(getattr(call, name), kind) for name in ("q", "k", "v")})
    want = call.attend()
    got = moved.attend()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    check(moved, got)


@pytest.mark.parametrize("which", ["batch", "head"])
def test_expanded_keys(which):
    call = make(Causal(), heads=4, batch=3)
    one = slice(0, 1)
    part = (one,) if which == "batch" else (slice(None), one)
    k, v = (x[part].expand_as(x) for x in (call.k, call.v))
    check(*_attended(replace(call, k=k, v=v)))


@by_tile
@pytest.mark.parametrize("head_dim", [64, 128])
def test_all_of_the_output_is_written(head_dim, tile):
    """Results lie in memory that was full of NaN."""
    call = make(named("stof-longformer", 700), 700, head_dim=head_dim, tile=tile, limit=3)
    poison = [torch.full((1 << 22,), math.nan, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    del poison
    check(call, call.attend())


@by_tile
def test_replays_in_a_graph_and_never_waits(tile):
    call = make(named("stof-longformer", 1000), 1000, tile=tile)
    tiles = call.map()
    work = work_list(tiles, 3)
    call.attend_with(tiles, work)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call.attend_with(tiles, work)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call.attend_with(tiles, work)
    for _ in range(3):
        for x in (call.q, call.k, call.v):
            x.copy_(torch.randn_like(x))
        for x in got:
            x.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(call, got)


def test_the_same_call_gives_the_same_bits():
    call = make(named("stof-longformer", 2000), 2000, batch=2)
    tiles = call.map()
    work = work_list(tiles, 3)
    first = call.attend_with(tiles, work)
    for _ in range(20):
        again = call.attend_with(tiles, work)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


def test_streams_do_not_disturb_each_other():
    calls = [make(named("stof-longformer", 1500), 1500) for _ in range(2)]
    tiles = calls[0].map()
    work = work_list(tiles, 2)
    want = [call.attend_with(tiles, work) for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    got: list[list[tuple[Tensor, Tensor]]] = [[], []]
    for _ in range(30):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got[i].append(calls[i].attend_with(tiles, work))
    torch.cuda.synchronize()
    for i, results in enumerate(got):
        for result in results:
            assert all(torch.equal(a, b) for a, b in zip(result, want[i], strict=True))


def test_runs_on_the_current_stream():
    call = make(Causal())
    tiles = call.map()
    want = replace(call, q=call.q + 1).attend_with(tiles, None)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        call.q.add_(1)
        got = call.attend_with(tiles, None)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@by_tile
@pytest.mark.parametrize("limit", [None, 1 << 20, 2])
def test_without_lse(tile, limit):
    call = make(named("stof-longformer", 500), 500, tile=tile, limit=limit)
    tiles = call.map()
    work = None if limit is None else work_list(tiles, limit)
    want, _ = call.attend_with(tiles, work)
    out, lse = call.attend_with(tiles, work, with_lse=False)
    assert lse is None
    assert torch.equal(out, want)


def test_tensors_that_lie_anywhere():
    """The kernel gets copies."""
    call = make(Causal())
    tiles = call.map()
    want = call.attend_with(tiles, None)
    late = [x.new_empty(x.numel() + 1)[1:].view_as(x).copy_(x) for x in (call.q, call.k, call.v)]
    apart = [x.new_empty(*x.shape[:3], 68)[..., :64].copy_(x) for x in late]
    for q, k, v in (late, apart, (call.q, apart[1], late[2])):
        got = replace(call, q=q, k=k, v=v).attend_with(tiles, None)
        assert all(map(torch.equal, got, want))
    one = call.k[:, :, :1].expand_as(call.k)
    repeated = replace(call, k=one)
    check(repeated, repeated.attend_with(tiles, None))


@pytest.mark.parametrize("mask", ["stof-longformer", "causal"])
def test_triton_agrees(mask):
    call = make(named(mask, 500), 500, limit=None)
    check(call, call.attend(backend="triton"))


def test_what_the_kernel_does_not_take_goes_to_triton():
    call = make(Causal(), head_dim=96)
    tiles = call.map()
    with pytest.raises(RuntimeError, match="the CUDA kernel takes"):
        call.attend_with(tiles, None, "cuda")
    check(call, call.attend_with(tiles, None, backend=None))  # type: ignore[arg-type]

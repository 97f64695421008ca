"""What only a GPU can show of decode_attention: fast formats, graphs, streams, long sequences."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch

from gossamer.ops import OPS
from gossamer.ops import BlockFormat as Fmt
from tests.ops.decode import Call, Case, build, tuned
from tests.ops.decode_cases import BF16, F16, F32, INT4
from tests.ops.decode_oracle import check, same

pytestmark = pytest.mark.gpu
FAST = [b for b in ("cuda", "triton") if b in OPS["decode_attention"].backends]
by_fast_backend = pytest.mark.parametrize("backend", FAST)
by_backend = pytest.mark.parametrize("backend", ["reference", *FAST])

KEEPS = [(1, 7), (24, 32), (40, 64), (100, None)]  # None: head_dim; never more than that
OWN = {F16: "fp16", BF16: "bf16"}
CHANNEL_INT3 = Fmt(128, 40, "int4", "channel"), Fmt(128, 24, "int3")


def _sparse_codes(d: int, k: int, v: int) -> list[tuple[Fmt, Fmt]]:
    """Codes of every kind: as K beside two kinds of V, and as V beside K dense with codes."""
    kinds = [(n, s) for n in ("int4", "int3", "int2", "int8") for s in ("row", "channel")]
    kinds.append(("fp8_e4m3", "row"))
    found = [
        (Fmt(d, k, *kind), Fmt(d, v, *kinds[(i + step) % len(kinds)]))
        for i, kind in enumerate(kinds)
        for step in (1, 4)
    ]
    return found + [(Fmt(d, None, "int4", "channel"), Fmt(d, v, *kind)) for kind in kinds]


def _fast_cases() -> list[Case]:
    """Every format that the CUDA backend is tuned for, with all groups and kinds of calls."""
    groups, q_lens = cycle(range(1, 9)), cycle([1, 2, 1, 5, 8])
    windows = cycle([(None, 0), (64, 0), (0, 32), (32, 64)])
    found = []
    for d in (64, 128):
        pairs: list[tuple[Fmt, Fmt, tuple[torch.dtype, ...]]] = []
        for a, b in KEEPS:
            k, v = min(a, d), d if b is None else b
            pairs += [(Fmt(d, k, OWN[t]), Fmt(d, v, OWN[t]), (t,)) for t in OWN]
            pairs += [
                (Fmt(d, k, n), Fmt(d, v, n), (F16, BF16)) for n in ("int8", "fp8_e4m3", "int4")
            ]
            pairs += [(Fmt(d, None, "int4", "channel"), Fmt(d, v, "int4"), (F16, BF16))]
            pairs += [(*pair, (F16, BF16)) for pair in _sparse_codes(d, k, v)]
        pairs += [(Fmt(d, None, OWN[t]), Fmt(d, None, OWN[t]), (t,)) for t in OWN]
        for k, v, dtypes in pairs:
            for dtype in dtypes:
                window, sink = next(windows)
                found.append(
                    Case(k, v, (700, 0, 1, 333), group=next(groups), q_len=next(q_lens),
                         window=window, sink=sink, dense=OWN[dtype], dtype=dtype)
                )  # fmt: skip
    for group in range(1, 9):
        found += [
            Case(Fmt(128, 40), Fmt(128, 40), (700, 64), group=group),
            Case(*INT4, (700, 64), group=group, q_len=3, page_size=64, window=32),
            Case(Fmt(64, 24, "int8"), Fmt(64, 24, "int8"), (700, 64), group=group, softcap=4.0),
            Case(Fmt(128), Fmt(128), (700, 64), group=group, sliding=500),
            Case(*CHANNEL_INT3, (700, 64), group=group, q_len=2, window=32),
        ]
    return found + _magnitudes()


def _magnitudes() -> list[Case]:
    """Small and large numbers in codes; scores stay what they are, so that many tokens count."""
    kinds = [("int4", "row"), ("int4", "channel"), ("int3", "row"), ("int2", "channel")]
    sizes = [(1e-3, 1.0), (1e3, 1.0), (1.0, 1e-3), (1.0, 1e3)]
    return [
        Case(Fmt(128, 40, *k), Fmt(128, 40, *v), (700, 64), group=4, sizes=(a, b), scale=0.09 / a,
             dtype=dtype)
        for i, k in enumerate(kinds)
        for v, (a, b), dtype in zip(kinds, sizes[i:] + sizes[:i], 2 * (F16, BF16), strict=True)
    ]  # fmt: skip


FAST_CASES = _fast_cases()
assert all(map(tuned, FAST_CASES))


@pytest.mark.parametrize("case", FAST_CASES, ids=str)
def test_fast_formats(case):
    call = build(case, "cuda")
    check(call, call.attend("cuda"))


@pytest.mark.parametrize(
    "case",
    [Case(Fmt(80), Fmt(80, 24, "int3")), Case(dtype=F32), Case(group=16, q_len=8), Case(window=0)],
    ids=str,
)
def test_without_a_name_every_format_runs(case):
    call = build(case, "cuda")
    check(call, call.attend())


LONG = [
    Case(Fmt(128, 40), Fmt(128, 40), (100_000,), kv_heads=1, group=4, pages=300),
    Case(Fmt(128, 40), Fmt(128, 40), (100_000, *range(63)), group=4, pages=300, window=64, sink=32),
    Case(*INT4, (100_000, 0, 5, 31_000), kv_heads=1, group=8, pages=90, page_size=160, q_len=2),
    Case(*CHANNEL_INT3, (100_000, 7), kv_heads=1, group=4, pages=90, window=64, sink=32),
    Case(Fmt(64), Fmt(64), (65_537, 3), kv_heads=1, pages=300, dtype=F32),
    Case(lens=tuple(7 * i % 611 for i in range(300)), pages=400, window=32, q_len=2),
    Case(lens=(200_000,), kv_heads=1, pages=200, sliding=70_000),
]


@by_fast_backend
@pytest.mark.parametrize("case", LONG, ids=lambda case: str(case)[:60])
def test_long_ragged_and_many(backend, case):
    call = build(case, "cuda")
    check(call, call.attend(backend))


@by_fast_backend
def test_a_pool_of_more_than_4_gib(backend):
    small = build(Case(Fmt(128), Fmt(128), (90, 33), kv_heads=8))
    pages, pools = len(small.main.k_blocks), []
    first = (1 << 32) // small.main.k_blocks[0].numel() + 5
    for blocks in (small.main.k_blocks, small.main.v_blocks):
        pool = torch.full((first + len(blocks), *blocks.shape[1:]), 0xFF, dtype=torch.uint8,
                          device="cuda")  # fmt: skip
        pool[first:] = blocks.cuda()
        pools.append(pool)
    table = small.main.table.clone()
    table[(table >= 0) & (table < pages)] += first
    call = small.to("cuda")
    main = replace(call.main, k_blocks=pools[0], v_blocks=pools[1], table=table.cuda())
    check(small, replace(call, main=main).attend(backend))


STEPS = [  # of one cache: the longest sequence makes the table as wide each time
    (640, 33, 1, 0),
    (0, 640, 64, 7),
    (31, 32, 640, 640),
]


@by_fast_backend
@pytest.mark.parametrize(
    "case",
    [
        Case(Fmt(128, 40), Fmt(128, 40), group=4, pages=70, q_len=2, window=64, sink=32),
        Case(*INT4, group=8, pages=70),
        Case(*CHANNEL_INT3, group=4, pages=70, window=32),
    ],
    ids=str,
)
def test_replays_in_a_cuda_graph_and_never_waits(backend, case):
    """Lengths, tables, queries and blocks change between replays; the host sees none of them."""
    steps = [build(replace(case, lens=lens), "cuda") for lens in STEPS]
    static = build(replace(case, lens=STEPS[0]), "cuda")
    static.attend(backend)  # compiled outside of the capture
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        static.attend(backend)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = static.attend(backend)
    for step in [*steps, steps[0]]:
        for old, new in zip(static.tensors(), step.tensors(), strict=True):
            old.copy_(new)
        for result in got:
            result.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(step, got)
        assert same(got, step.attend(backend))


@by_fast_backend
def test_the_same_call_gives_the_same_bits(backend):
    case = Case(Fmt(128, 40), Fmt(128, 40), (9000, 70, 1000), group=4, pages=300, window=64)
    call = build(case, "cuda")
    first = call.attend(backend)
    assert all(same(call.attend(backend), first) for _ in range(20))


@by_fast_backend
def test_streams_do_not_disturb_each_other(backend):
    """Whatever scratch memory a call needs belongs to it alone."""
    case = Case(Fmt(128, 40), Fmt(128, 40), (9000, 70, 1000, 300), group=4, pages=300)
    calls = [build(case, "cuda") for _ in range(2)]
    want = [call.attend(backend) for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    got: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], []]
    for _ in range(50):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                got[i].append(calls[i].attend(backend))
    torch.cuda.synchronize()
    assert all(same(result, want[i]) for i in range(2) for result in got[i])


@by_fast_backend
def test_runs_on_the_current_stream(backend):
    call = build(Case(lens=(300, 40)), "cuda")
    want = replace(call, q=call.q + 1).attend(backend)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        call.q.add_(1)
        got = call.attend(backend)
    stream.synchronize()
    assert same(got, want)


@by_backend
@pytest.mark.parametrize("window", [None, 32])
def test_a_wrong_length_is_nan_for_its_sequence_alone(backend, window):
    call = build(Case(lens=(170, 40, 0, 33), window=window), "cuda")
    want = call.attend(backend)
    capacity = 32 * call.main.table.shape[1]  # the narrower of the tables
    for length in (capacity + 1, -1, 2**31 - 1, -(2**31)):
        lens = call.lens.clone()
        lens[1] = length
        _spoiled(call, replace(call, lens=lens), backend, want)


@by_backend
@pytest.mark.parametrize("which", ["main", "dense"])
def test_a_page_that_is_not_there_is_nan_for_its_sequence_alone(backend, which):
    call = build(Case(lens=(170, 140, 0, 33), window=32), "cuda")
    want = call.attend(backend)
    pool = getattr(call, which)
    column = 0 if which == "main" else 4
    assert 0 <= int(pool.table[1, column]) < len(pool.k_blocks)
    for page in (-1, len(pool.k_blocks), 2**31 - 1, -(2**31)):  # V has one page more than K
        table = pool.table.clone()
        table[1, column] = page
        _spoiled(call, replace(call, **{which: replace(pool, table=table)}), backend, want)


@pytest.mark.parametrize("byte", [None, 0xFF], ids=["random", "ones"])
@pytest.mark.parametrize(
    "case",
    [
        Case(Fmt(128, 8), Fmt(128, 8), (1300, 1290, 0, 690), group=4),
        Case(Fmt(128, 64), Fmt(128, 64), (1300, 1290, 0, 690), group=4),
        Case(Fmt(128, 40, "int8"), Fmt(128, 120, "int8"), (1300, 1290, 0, 690), group=8),
        Case(Fmt(64, 8, "fp8_e4m3"), Fmt(64, 16, "int4"), (1300, 1290, 0, 690), window=32),
        Case(*INT4, (1300, 1290, 0, 690), group=8),
        Case(Fmt(128, 40, "int4", "channel"), Fmt(128, 8, "int3"), (1300, 1290, 0, 690), group=4),
        Case(Fmt(128, 8, "int2", "channel"), Fmt(128, 64, "int8", "channel"), (1300, 1290, 0, 690)),
        Case(Fmt(64, 8, "int4"), Fmt(64, 64, "int2"), (1300, 1290, 0, 690), group=8),
    ],
    ids=str,
)
def test_pages_that_nobody_wrote_harm_no_other_sequence(case, byte):
    """Their bitmaps may have more bits than there are values to read."""
    call = build(case, "cuda")
    want = call.attend("cuda")
    blocks = [call.main.k_blocks.clone(), call.main.v_blocks.clone()]
    pages = call.main.table[1]
    pages = pages[(pages >= 0) & (pages < len(blocks[0]))].long()
    assert len(pages) > 30
    for pool in blocks:
        pool[pages] = torch.randint_like(pool[pages], 256) if byte is None else byte
    main = replace(call.main, k_blocks=blocks[0], v_blocks=blocks[1])
    got = replace(call, main=main).attend("cuda")
    torch.cuda.synchronize()  # the device is still usable
    assert same(got, want, [0, 2, 3])


def _spoiled(
    call: Call, wrong: Call, backend: str, want: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """The second sequence is NaN, the others are as they were."""
    got = wrong.attend(backend)
    torch.cuda.synchronize()  # the device is still usable
    assert got[0][1].isnan().all()
    assert got[1][1].isnan().all()
    check(call, got, [0, 2, 3])
    assert same(got, want, [0, 2, 3])

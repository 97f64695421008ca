"""decode_attention over dense codes on a GPU: every format, head dimension and group of heads."""

from dataclasses import replace
from itertools import cycle

import pytest
import torch

from gossamer.kv.bits import KERNEL_HEAD_DIMS, kernel_pairs
from gossamer.ops import OPS
from gossamer.ops import BlockFormat as Fmt
from tests.ops.decode import Case, build, tuned
from tests.ops.decode_cases import BF16, F16, HEAD_DIMS, OWN, codes, paired
from tests.ops.decode_oracle import check, same

pytestmark = pytest.mark.gpu
FAST = [b for b in ("cuda", "triton") if b in OPS["decode_attention"].backends]
by_fast_backend = pytest.mark.parametrize("backend", FAST)
# Codes are exact in 16 bits; queries times scales of channels, and weights times those of rows,
# are not.
TOLERANCE = {F16: 2e-3, BF16: 1.2e-2}
BY_CHANNEL = {F16: 3e-3, BF16: 1.2e-2}  # up to 2.3e-3 was seen with int8 keys


def tolerance_of(case: Case) -> float:
    return (BY_CHANNEL if case.k.scales == "channel" else TOLERANCE)[case.dtype]


KIVI = Fmt(128, None, "int4", "channel"), Fmt(128, None, "int4", "group")
CODED = (
    Fmt(128, None, "8x16+4x40+3x40+2x24+0x8", "row"),
    Fmt(128, None, "4x56+2x56+0x16", "none"),
)


def _formats() -> list[Case]:
    """Each format once as that of K and once as that of V, for every head dimension and dtype."""
    groups, q_lens = cycle(range(1, 17)), cycle([1, 2, 1, 5, 1, 8, 3])
    windows = cycle([(32, 0), (None, 0), (64, 32), (0, 0), (32, 64)])
    scores = cycle([{}, {}, {"softcap": 4.0}, {}, {"sliding": 200}, {}, {"page_size": 160}])
    lens = cycle([(333, 0, 65), (700, 1), (32, 31, 290), (97, 128, 64, 2)])
    found = []
    for head_dim in HEAD_DIMS:
        for i, dtype in enumerate((F16, BF16)):
            formats = codes(head_dim)
            for case in paired(formats[i:] + formats[:i], kv_heads=2):
                window, sink = next(windows)
                found.append(
                    replace(case, lens=next(lens), group=next(groups), q_len=next(q_lens),
                            window=window, sink=sink, dense=OWN[dtype], dtype=dtype,
                            **next(scores))
                )  # fmt: skip
    return found


def _groups() -> list[Case]:
    """All groups of heads, with the formats that are used most."""
    pairs = [
        (Fmt(64, None, "int8"), Fmt(64, None, "int8"), 1),
        (*KIVI, 1),
        (*CODED, 2),
        (Fmt(96, None, "fp8_e4m3"), Fmt(96, None, "int4"), 8),
    ]
    return [
        Case(k, v, (170, 64), group=group, q_len=q_len, window=32)
        for k, v, q_len in pairs
        for group in range(1, 17)
    ]


def _own_kernels() -> list[Case]:
    """The pairs of K and V that have kernels of their own."""
    pairs = []
    for d in HEAD_DIMS:
        same_types = [(name, "row", name, "row") for name in ("int8", "int4", "fp8_e4m3")]
        kivi = [("int4", "channel", "int4", "group")] if d % 32 == 0 else []
        for k, k_scales, v, v_scales in same_types + kivi:
            pairs.append((Fmt(d, None, k, k_scales), Fmt(d, None, v, v_scales)))
        coded = kernel_pairs(d)[1:] if d in KERNEL_HEAD_DIMS else ()
        pairs += [(Fmt(d, None, k.bits, "row"), Fmt(d, None, v.bits, "row")) for k, v in coded]
    windows, dtypes = cycle([(32, 32), (None, 0), (128, 0)]), cycle([F16, BF16])
    return [
        Case(k, v, (333, 0, 65, 1200), group=4, q_len=q_len, window=window, sink=sink,
             dense=OWN[dtype], dtype=dtype)
        for (k, v), (window, sink), dtype, q_len in zip(pairs, windows, dtypes, cycle([1, 2, 1]))
    ]  # fmt: skip


def _magnitudes() -> list[Case]:
    """Rows of small and of large numbers; scores stay what they are, so that many tokens count."""
    sizes = [(1e-4, 1.0), (1e3, 1.0), (1.0, 1e-4), (1.0, 1e3), (1e-4, 1e3), (1e3, 1e-4)]
    chosen = [fmt for fmt in codes(128) if fmt.scales != "none"]
    found = []
    for case, (a, b), dtype in zip(
        paired(chosen, lens=(333, 64), group=4, q_len=2), cycle(sizes), cycle([F16, BF16, F16])
    ):
        options = {"sizes": (a, b), "scale": 0.09 / a, "dtype": dtype, "dense": OWN[dtype]}
        found.append(replace(case, **options))
    return found


CASES = [*_formats(), *_groups(), *_own_kernels(), *_magnitudes()]
assert all(map(tuned, CASES))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_codes(case):
    call = build(case, "cuda")
    check(call, call.attend("cuda"), tolerance=tolerance_of(case))


LONG = [
    Case(Fmt(128, None, "int8"), Fmt(128, None, "int8"), (100_000,), kv_heads=1, group=4, pages=90),
    Case(*KIVI, (40_000, *range(0, 63, 3)), group=8, pages=300, window=64, sink=32),
    Case(*CODED, (30_000, 0, 5, 9_000), kv_heads=1, group=5, pages=90, page_size=160, q_len=2),
    Case(*CODED, tuple(7 * i % 611 for i in range(200)), group=6, pages=400, window=32, q_len=2),
    Case(*KIVI, tuple(5 * i % 307 for i in range(250)), group=8, pages=400, window=32, sink=32),
    Case(Fmt(80, None, "int3"), Fmt(80, None, "int2"), (50_000,), kv_heads=1, pages=99,
         sliding=20_000),
]  # fmt: skip


@by_fast_backend
@pytest.mark.parametrize("case", LONG, ids=lambda case: str(case)[:60])
def test_long_ragged_and_many(backend, case):
    call = build(case, "cuda")
    check(call, call.attend(backend), tolerance=tolerance_of(case))


STEPS = [(640, 33, 1, 0), (0, 640, 64, 7), (31, 32, 640, 640)]


@pytest.mark.parametrize(
    "case",
    [
        Case(*KIVI, group=8, pages=70, window=64, sink=32),
        Case(*CODED, group=5, pages=70, q_len=2),
        Case(Fmt(64, None, "int8"), Fmt(64, None, "fp8_e4m3"), group=3, pages=70, window=32),
    ],
    ids=str,
)
def test_replays_in_a_cuda_graph_and_never_waits(case):
    steps = [build(replace(case, lens=lens), "cuda") for lens in STEPS]
    static = build(replace(case, lens=STEPS[0]), "cuda")
    static.attend("cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        static.attend("cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = static.attend("cuda")
    for step in [*steps, steps[0]]:
        for old, new in zip(static.tensors(), step.tensors(), strict=True):
            old.copy_(new)
        for result in got:
            result.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(step, got, tolerance=tolerance_of(case))
        assert same(got, step.attend("cuda"))


@pytest.mark.parametrize("byte", [None, 0xFF], ids=["random", "ones"])
@pytest.mark.parametrize(
    "case",
    [
        Case(*KIVI, (1300, 1290, 0, 690), group=8),
        Case(*CODED, (1300, 1290, 0, 690), group=4, window=32),
        Case(Fmt(96, None, "fp8_e4m3"), Fmt(96, None, "int8"), (1300, 1290, 0, 690), group=7),
    ],
    ids=str,
)
def test_pages_that_nobody_wrote_harm_no_other_sequence(case, byte):
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

"""Which caches the tests of decode_attention go through."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from gossamer.ops import BlockFormat as Fmt
from tests.ops import kv
from tests.ops.decode import Case
from tests.ops.spec import runs

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
RUNS = [pytest.param(*p.values[1:], id=p.id, marks=p.marks) for p in runs("decode_attention")]
OWN = {F16: "fp16", BF16: "bf16", F32: "fp32"}
PLAIN = ("none", "row")  # scales of a profile
FAR = 1 << 40  # a window, sink or range of attention that never ends
INTERPRETED_TOKENS = 330  # times heads; Triton's interpreter takes milliseconds for each


def kinds(head_dim: int, keep: int) -> list[Fmt]:
    """Every type of values with all its scales, dense and sparse."""
    found = []
    for values in kv.BITS:
        scales = ("row", "channel") if values.startswith("int") else (None,)
        found += [Fmt(head_dim, keep, values, s) for s in scales]
        grouped = ("group",) if values.startswith("int") and head_dim % 32 == 0 else ()
        found += [Fmt(head_dim, None, values, s) for s in scales + grouped]
    return found + coded(head_dim)


def coded(head_dim: int) -> list[Fmt]:
    """Profiles: in order of bits and out of it, some of no bits, ends of one byte and of two."""
    rest = head_dim - 56
    if rest <= 0:
        return []
    return [
        Fmt(head_dim, None, f"8x8+4x{rest + 24}+3x8+2x16", "none"),
        Fmt(head_dim, None, f"4x{rest + 8}+3x24+2x16+0x8", "row"),
        Fmt(head_dim, None, f"2x8+8x8+0x8+3x8+4x8+3x16+8x{rest}", "row"),
        Fmt(head_dim, None, f"3x{rest + 48}+2x8", "none"),
    ]


def codes(head_dim: int) -> list[Fmt]:
    """All formats of dense codes."""
    return [fmt for fmt in kinds(head_dim, 1) if fmt.keep is None and fmt.bits <= 8]


def paired(formats: list[Fmt], **options: Any) -> list[Case]:
    """Each format once as that of K and once as that of V, beside another."""
    step = 5 if len(formats) % 5 else 7
    others = [formats[(step * i + 3) % len(formats)] for i in range(len(formats))]
    assert sorted(map(str, others)) == sorted(map(str, formats))
    return [Case(k, v, **options) for k, v in zip(formats, others, strict=True)]


FORMATS = paired(kinds(64, 24), lens=(33, 0, 70), q_len=2, kv_heads=1)
MORE_FORMATS = paired(kinds(128, 40), lens=(97,), dtype=F32, window=32)

# Codes of every head dimension, with all groups; the number of rows changes how they are read.
HEAD_DIMS = (64, 80, 96, 128, 256)
GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)


def code_cases(dtypes: Sequence[torch.dtype], **options: Any) -> list[Case]:
    """Every format of codes of every head dimension, groups and dtypes in turn."""
    groups, types = cycle(GROUPS), cycle(dtypes)
    found = []
    for head_dim in HEAD_DIMS:
        for case in paired(codes(head_dim), **options):
            dtype = next(types)
            found.append(replace(case, group=next(groups), dtype=dtype, dense=OWN[dtype]))
    return found


CODES = code_cases((F16, F32, BF16), lens=(70, 33), kv_heads=1, window=0, q_len=2)
# Rows of small and of large numbers; scores stay what they are.
MAGNITUDES = [
    Case(k, v, (70, 33), kv_heads=1, group=3, sizes=(a, b), scale=0.1 / a, dtype=dtype)
    for k, v, dtype in [
        (Fmt(64, None, "int8"), Fmt(64, None, "int4"), F32),
        (Fmt(64, None, "int4", "channel"), Fmt(64, None, "int4", "group"), F16),
        (Fmt(64, None, "int3", "group"), Fmt(64, None, "int8", "channel"), F32),
        (Fmt(64, None, "fp8_e4m3"), Fmt(64, None, "4x40+3x16+2x8", "row"), F16),
    ]
    for a, b in [(1e-3, 1e3), (1e3, 1e-3)]
]

INT4 = Fmt(128, None, "int4", "channel"), Fmt(128, 40, "int4")  # the best for its bytes
SHAPES = [
    # lengths around blocks, long ones, none
    Case(lens=(0, 1, 31, 32, 33)),
    Case(lens=(0, 0), window=32),
    Case(lens=()),
    Case(lens=(4095, 1, 0, 64), group=4, kv_heads=1),
    Case(lens=(4095, 4096), dtype=F32, kv_heads=1, page_size=160, window=64, sink=32),
    # rows of queries, of any number of heads and tokens
    *(Case(group=g, lens=(45, 33), kv_heads=1) for g in (1, 3, 7, 8, 16)),
    *(Case(q_len=n, lens=(45, 33, 2), kv_heads=1, dtype=F32) for n in (2, 5, 8)),
    Case(q_len=8, group=16, kv_heads=1, lens=(66, 3), window=0),
    Case(q_len=8, group=7, kv_heads=3, lens=(40,), dtype=BF16),
    Case(q_len=5, lens=(0, 1, 4, 5, 6, 33)),
    # rows of numbers
    Case(Fmt(80, 40), Fmt(80, 24, "int8"), group=1, q_len=2, page_size=64, lens=(100, 64, 3)),
    Case(Fmt(96, 1, "bf16"), Fmt(96, 96, "int4"), group=4, dtype=BF16, lens=(50, 64)),
    Case(Fmt(256, 100, "int4"), Fmt(256, None, "int3", "group"), group=8, kv_heads=1, lens=(66,)),
    Case(Fmt(256, None, "fp8_e4m3"), Fmt(256, 31), dtype=F32, lens=(66,), kv_heads=1, window=32),
    Case(Fmt(80, None, "fp32"), Fmt(80, 7, "fp32"), dtype=F32, lens=(33, 95), kv_heads=1),
    Case(*INT4, group=4, q_len=5, lens=(165, 330, 12), page_size=160, window=32, sink=32),
    Case(*INT4, group=8, dtype=BF16, dense="bf16", lens=(700, 40), window=64),
    # pages: large, shared by sequences and within one
    Case(lens=(200, 161, 160, 159), page_size=160),
    Case(lens=(100, 128, 90), page_size=64, pages=2),
    Case(lens=(300, 290, 31), pages=3, window=32, sink=32, kv_heads=1),
    # windows and sinks, shorter and longer than the sequence
    *(
        Case(lens=(130, 31), window=w, sink=s, kv_heads=1, dtype=d, dense=n, q_len=2)
        for w, s, d, n in [
            (0, 0, F16, "fp16"),
            (32, 0, BF16, "bf16"),
            (64, 32, F32, "fp32"),
            (0, 64, F16, "bf16"),
            (32, 256, F32, "fp16"),
            (FAR, 0, F16, "fp32"),
            (0, FAR, F16, "fp16"),
        ]
    ),
    # sliding
    *(
        Case(lens=(130, 31), sliding=n, window=w, kv_heads=1, q_len=q)
        for n, w, q in [(1, None, 1), (33, None, 3), (100, 32, 2), (1, 0, 3), (100, 64, 8)]
    ),
    Case(lens=(130, 31), sliding=FAR, kv_heads=1),
    Case(lens=(260,), sliding=100, window=32, sink=64, kv_heads=1),  # the sink out of sight
    Case(lens=(260,), sliding=240, window=32, sink=64, kv_heads=1),
    # scores
    Case(softcap=2.5, scale=0.4, kv_heads=1),
    Case(softcap=30.0, dtype=F32, kv_heads=1, window=32),
    Case(scale=-0.3, dtype=F32),
    Case(scale=0.0, kv_heads=1),
]


def parameters(cases: list[Case], more: Sequence[Case] = ()) -> list[Any]:
    """pytest parameters (case, backend, device).

    Triton compiles seconds for each format: it gets a few of `more`, its interpreter small cases.
    """
    found = []
    for run in RUNS:
        backend, device = run.values
        chosen = [*cases, *(more[::6] if backend == "triton" else more)]
        if interpreted(backend, device):
            chosen = [case for case in chosen if interpretable(case)]
        found += [
            pytest.param(case, *run.values, id=f"{run.id}-{case}", marks=run.marks)
            for case in chosen
        ]
    return found


def interpreted(backend: str, device: str) -> bool:
    return backend == "triton" and device == "cpu"


def interpretable(case: Case) -> bool:
    """Small enough; and no bfloat16, whose products the interpreter gets wrong."""
    size = sum(case.lens) * case.kv_heads * (1 if case.window is None else 2)
    return case.dtype != BF16 and size <= INTERPRETED_TOKENS


@st.composite
def any_case(draw: st.DrawFn, most: int = 120, dtypes: tuple[torch.dtype, ...] = (F16, BF16, F32)):
    """Any call there is, with sequences of up to `most` tokens."""
    head_dim = draw(st.sampled_from(kv.HEAD_DIMS))
    k, v = (
        draw(
            st.sampled_from(kinds(head_dim, draw(st.integers(1, head_dim))))
            | st.builds(
                Fmt, st.just(head_dim), st.none(), kv.profiles(head_dim), st.sampled_from(PLAIN)
            )
        )
        for _ in range(2)
    )
    lens = tuple(draw(st.lists(st.integers(0, most), max_size=3)))
    return Case(
        *(k, v, lens),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.integers(1, 16)),
        q_len=draw(st.integers(1, 8)),
        page_size=draw(st.sampled_from([32, 64, 160])),
        pages=draw(st.none() | st.integers(1, 3)),
        window=draw(st.sampled_from([None, 0, 32, 64])),
        sink=draw(st.sampled_from([0, 32, 64])),
        dense=draw(st.sampled_from(["fp16", "bf16", "fp32"])),
        sliding=draw(st.just(0) | st.integers(1, most + 10)),
        softcap=draw(st.sampled_from([0.0, 1.5, 50.0])),
        scale=draw(st.sampled_from([None, 0.3, -0.1])),
        dtype=draw(st.sampled_from(dtypes)),
    )

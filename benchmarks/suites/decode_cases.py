"""The points that decode attention is measured at."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.suites.decode_cache import DecodeCase, Stored
from gossamer.ops.kv_block import BLOCK_TOKENS

NINE_SHAPES = [
    *((1, 8, 4_096), (1, 8, 32_768), (1, 8, 131_072), (8, 8, 4_096), (8, 8, 32_768)),
    *((32, 8, 4_096), (32, 8, 16_384), (8, 32, 4_096), (8, 32, 16_384)),
]
CACHES: list[tuple[Stored, Stored | None]] = [
    (Stored(), None),
    *((Stored(keep), None) for keep in (64, 40, 32, 24)),
    (Stored(40, "int8"), None),
    (Stored(40, "fp8_e4m3"), None),
    (Stored(None, "int4", "channel"), Stored(40, "int4")),
]
SWEEP = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
SWEEP_CONTEXTS = (4_096, 32_768)
ONE_LONG = (131_072, *[2_048] * 31)
KEEP_40 = Stored(40)


def spread_lengths(count: int = 64, low: int = 256, high: int = 32_768) -> tuple[int, ...]:
    """Log-uniform quantiles in a mixed order, whole blocks, whose mean is a whole block too."""
    quantiles = [low * (high / low) ** ((i + 0.5) / count) for i in range(count)]
    blocks = [round(x / BLOCK_TOKENS) for x in quantiles]
    blocks[-1] -= sum(blocks) % count
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return tuple(blocks[i] * BLOCK_TOKENS for i in order.tolist())


def cuda_cases() -> Iterator[DecodeCase]:
    for shape in NINE_SHAPES:
        yield from (DecodeCase(*shape, k=k, v=v) for k, v in CACHES)
    done = {k.keep for k, v in CACHES if k.values == "same" and v is None}
    for context in SWEEP_CONTEXTS:
        yield from (DecodeCase(8, 8, context, Stored(n)) for n in SWEEP if n not in done)
    for kv_heads in (8, 4):  # 4 and 8 query heads each; 1 is among the nine shapes
        yield from (DecodeCase(8, kv_heads, 16_384, k) for k in (Stored(), KEEP_40))
    base = DecodeCase(8, 8, 32_768)
    for keep in (None, 40):
        yield replace(base, dtype=torch.bfloat16, k=Stored(keep))
    for keep in (None, 32, 20):
        yield replace(base, head_dim=64, k=Stored(keep))
    yield from _length_cases()
    for page_size in (32, 256):
        for shuffled in (False, True):
            note = f"pages={page_size} {'shuffled' if shuffled else 'in order'}"
            yield replace(base, k=KEEP_40, page_size=page_size, shuffled=shuffled, note=note)
    for shape in ((8, 8, 32_768), (32, 8, 4_096)):
        yield DecodeCase(*shape, k=KEEP_40, window=32)
    for k in (Stored(), KEEP_40):
        yield DecodeCase(1, 8, 4_096, k, graph=True)
        yield replace(base, k=k, backends=("triton",))


def _length_cases() -> Iterator[DecodeCase]:
    """Batches of mixed lengths, each with sequences of one length that hold as many blocks."""
    for lengths, note in (
        (ONE_LONG, "lengths=131072+31x2048"),
        (spread_lengths(), "lengths=256..32768"),
    ):
        case = DecodeCase(len(lengths), 8, sum(lengths) // len(lengths), KEEP_40)
        yield replace(case, lengths=lengths, note=note)
        yield replace(case, note="lengths=equal")


def cpu_cases() -> Iterator[DecodeCase]:
    full = torch.float32
    for context in (8_192, 32_768):
        for heads in (32, 8):
            case = DecodeCase(1, 8, context, heads=heads, dtype=full)
            yield case
            yield replace(case, k=Stored(40, "fp16"))
            if heads == 32:
                others = Stored(None, "fp16"), Stored(64, "fp16"), Stored(40, "int8")
                yield from (replace(case, k=k) for k in others)
            half = replace(case, dtype=torch.bfloat16)
            yield from (half, replace(half, k=KEEP_40))


def small(case: DecodeCase) -> DecodeCase:
    """A case of the same kind that any machine runs in a moment."""
    lengths = (96, 32, 64) if case.lengths else ()
    batch, context = (3, 64) if "lengths" in case.note else (min(case.batch, 2), 96)
    heads, kv_heads = case.heads // 4, max(case.kv_heads // 4, 1)
    sized = replace(case, batch=batch, context=context, lengths=lengths)
    return replace(sized, heads=heads, kv_heads=kv_heads)

"""decode_attention over dense codes and coded rows, against the fastest one over a dense cache.

Peers are measured at every shape in the same run; formats are those of the caches that
docs/kv-cache.md names, and sparse codes next to them.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.suites.decode_attention import TOLERANCE, as_case, oracle
from benchmarks.suites.decode_cache import DecodeCase, Stored
from benchmarks.suites.decode_cases import small
from gossamer.bench.suite import Case, Suite, Target, main

SHAPES = ((8, 8, 32_768), (32, 8, 4_096), (1, 8, 131_072))
OTHER_HEAD_DIMS = (64, 96, 256)


def coded(eighths: str, head_dim: int, scales: str = "row") -> Stored:
    """A profile by its bits in eighths of a row: 84444422, say."""
    return Stored(None, "+".join(f"{bits}x{head_dim // 8}" for bits in eighths), scales)


def codes(head_dim: int) -> dict[str, tuple[Stored, Stored]]:
    """K and V of each cache, by the name in tables."""
    int4 = Stored(None, "int4")
    caches = {
        "int8": (Stored(None, "int8"),) * 2,
        "fp8": (Stored(None, "fp8_e4m3"),) * 2,
        "int4": (int4, int4),
        "KIVI-4": (Stored(None, "int4", "channel"), Stored(None, "int4", "group")),
    }
    if head_dim % 64 == 0:
        v20, v14 = coded("44333322", head_dim), coded("42222220", head_dim)
        caches["coded 23%"] = (coded("84444422", head_dim), v20)
        caches["coded 20%"] = (coded("84422220", head_dim), v20)
        caches["coded 14%"] = (coded("43322200", head_dim), v14)
    return caches


def sparse_codes() -> dict[str, tuple[Stored, Stored]]:
    found = {}
    for keep in (64, 40):
        for scales in ("row", "channel"):
            sides = (Stored(keep, "int4", scales), Stored(keep, "int4", "row"))
            found[f"keep {keep} int4, K by {scales}"] = sides
    return found


def points() -> Iterator[DecodeCase]:
    for shape in SHAPES:
        case = DecodeCase(*shape)
        yield case
        for k, v in (*codes(128).values(), *sparse_codes().values()):
            yield replace(case, k=k, v=v)
        yield replace(case, k=Stored(40))
    others = [(128, torch.bfloat16), *((d, torch.float16) for d in OTHER_HEAD_DIMS)]
    for head_dim, dtype in others:
        case = DecodeCase(*SHAPES[0], head_dim=head_dim, dtype=dtype)
        ours = head_dim in (64, 128)  # there is no dense kernel of ours for the others
        yield case if ours else replace(case, backends=("cpu",))
        for k, v in codes(head_dim).values():
            yield replace(case, k=k, v=v)


def _cases(device: str, quick: bool) -> Iterator[Case]:
    chosen = list(dict.fromkeys(small(p) for p in points())) if quick else list(points())
    for case in chosen:
        yield as_case(case, device)


TARGET = Target(
    worst=0.65,
    reason="next to the fastest attention over a dense cache, on a GPU; a CPU has no such peer",
)
SUITE = Suite(
    "decode_attention",
    _cases,
    oracle=oracle,
    tolerance=TOLERANCE,
    target=TARGET,
    file="decode_codes",
)

if __name__ == "__main__":
    main(SUITE)

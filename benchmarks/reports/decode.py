"""Tables of decode attention, made from result lines; a dash where there is none yet."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.reports.markdown import NOTHING, ms, share, speed_up, table
from benchmarks.suites.decode_cache import DecodeCase, Stored
from benchmarks.suites.decode_cases import (
    CACHES,
    KEEP_40,
    NINE_SHAPES,
    SWEEP,
    SWEEP_CONTEXTS,
    cpu_cases,
    cuda_cases,
)
from gossamer.bench import Record
from gossamer.ops import BACKENDS
from gossamer.ops.checks import dtype_name

FIGURE = Path("docs/figures/decode_speedup.svg")
MUSTAFAR = Path(__file__).parents[1] / "data/mustafar_decode_h200.csv"
MUSTAFAR_KEEP = {"50": 64, "70": 40, "80": 32}  # entries of 128 that we keep, by % pruned
PEERS = ("sdpa_cudnn", "sdpa_flash", "flashinfer", "flashinfer_tc")
SHAPE = ["batch", "KV heads", "context"]


class Points:
    """The decode records of one device, found by the case that they were measured at."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = {
            (tuple(r.shape), r.dtype, r.variant, r.backend): r
            for r in records
            if r.op == "decode_attention"
        }

    def ours(self, case: DecodeCase) -> Record | None:
        key = (case.shape, dtype_name(case.dtype), case.variant)
        found = (self._records.get((*key, backend)) for backend in case.backends)
        return next((r for r in found if r is not None), None)

    def peers(self, case: DecodeCase) -> dict[str, Record]:
        """Peers on the dense cache of the same shape, by name."""
        key = (case.shape, dtype_name(case.dtype))
        return {k[3]: r for k, r in self._records.items() if k[:2] == key and k[3] not in BACKENDS}

    def best_peer(self, case: DecodeCase) -> Record | None:
        return min(self.peers(case).values(), key=lambda r: r.median_ms, default=None)


def headline(records: list[Record]) -> str:
    """The nine shapes: the fastest dense peer, and half and 31% of the entries kept."""
    points = Points(records)
    rows = []
    for shape in NINE_SHAPES:
        dense = points.best_peer(DecodeCase(*shape))
        cells = [*_numbers(shape), ms(dense)]
        for keep in (64, 40):
            ours = points.ours(DecodeCase(*shape, k=Stored(keep)))
            cells += [ms(ours), speed_up(ours, dense)]
        rows.append(cells)
    columns = [*SHAPE, "best dense peer", "keep 64", "speed-up", "keep 40", "speed-up"]
    return table(columns, rows)


def shapes(records: list[Record]) -> str:
    """The nine shapes: every dense peer, then ours with the speed-up over the fastest of them."""
    points = Points(records)
    peers, ours = [], []
    for shape in NINE_SHAPES:
        case = DecodeCase(*shape)
        found = points.peers(case)
        peers.append([*_numbers(shape), *(ms(found.get(name)) for name in PEERS)])
        best = points.best_peer(case)
        measured = [points.ours(replace(case, k=k, v=v)) for k, v in CACHES]
        ours.append([*_numbers(shape), *(_time_and_ratio(r, best) for r in measured)])
    one = [DecodeCase(*NINE_SHAPES[0], k=k, v=v) for k, v in CACHES]
    caches = [f"{case.variant} (limit {_limit(case)})" for case in one]
    return f"{table([*SHAPE, *PEERS], peers)}\n\n{table([*SHAPE, *caches], ours)}"


def others(records: list[Record]) -> str:
    """Other groups of query heads, dtypes and head dimensions; window, CUDA graph, Triton."""
    listed = [c for c in cuda_cases() if _is_other(c)]
    columns = ["batch", "heads", "KV heads", "context", "head_dim", "dtype", "cache", "backend"]
    times = ["best dense peer", "gossamer", "speed-up", "limit", "of copy"]
    return table([*columns, *times], (_row(Points(records), c) for c in listed))


def cpu(records: list[Record]) -> str:
    """Every point on a CPU."""
    columns = ["batch", "heads", "KV heads", "context", "head_dim", "dtype", "cache", "backend"]
    times = ["best dense peer", "gossamer", "speed-up", "limit", "of copy"]
    return table([*columns, *times], (_row(Points(records), c) for c in cpu_cases()))


def lengths(records: list[Record]) -> str:
    """Mixed lengths next to one length, with as many blocks."""
    points = Points(records)
    rows = []
    for case in cuda_cases():
        if case.lengths:
            mixed = points.ours(case)
            equal = points.ours(replace(case, lengths=(), note="lengths=equal"))
            what = f"{case.batch} sequences, {case.note.removeprefix('lengths=')} tokens"
            same = f"{case.batch} of {case.context:,}"
            rows.append([what, same, ms(mixed), ms(equal), speed_up(equal, mixed)])
    return table(["lengths", "equal lengths", "mixed", "equal", "mixed / equal"], rows)


def pages(records: list[Record]) -> str:
    """Pages in order and shuffled."""
    points = Points(records)
    rows = []
    for case in cuda_cases():
        if case.note.endswith("in order"):
            ordered = points.ours(case)
            mixed = points.ours(replace(case, note=case.note.replace("in order", "shuffled")))
            rows.append([str(case.page_size), ms(ordered), ms(mixed), speed_up(ordered, mixed)])
    return table(["tokens per page", "in order", "shuffled", "shuffled / in order"], rows)


def mustafar(records: list[Record], file: Path = MUSTAFAR) -> str:
    """Times of Mustafar's own kernels and of ours at equal sparsity."""
    points = Points(records)
    rows = []
    for line in csv.DictReader(file.read_text().splitlines()):
        shape = (int(line["batch"]), int(line["kv_heads"]), int(line["context"]))
        cells = _numbers(shape)
        for percent, keep in MUSTAFAR_KEEP.items():
            theirs = float(line[f"ms_{percent}"])
            ours = points.ours(DecodeCase(*shape, k=Stored(keep)))
            times = NOTHING if ours is None else theirs / ours.median_ms
            ratio = times if isinstance(times, str) else f"{times:.{1 if times < 10 else 0}f}x"
            cells += [f"{theirs:.3g} ms", ms(ours), ratio]
        rows.append(cells)
    columns = [*SHAPE]
    for percent, keep in MUSTAFAR_KEEP.items():
        columns += [f"Mustafar {percent}%", f"keep {keep}", "ratio"]
    return table(columns, rows)


def sweep(records: list[Record]) -> str:
    """The figure, and what is drawn in it."""
    points = Points(records)
    rows = []
    for keep in SWEEP:
        cases = [DecodeCase(8, 8, context, Stored(keep)) for context in SWEEP_CONTEXTS]
        cells = [str(keep), f"{1 - keep / 128:.0%}", _limit(cases[0])]
        for case in cases:
            ours = points.ours(case)
            cells += [ms(ours), speed_up(ours, points.best_peer(case))]
        rows.append(cells)
    columns = ["kept of 128", "sparsity", "limit"]
    for context in SWEEP_CONTEXTS:
        columns += [f"8 x {context:,}", "speed-up"]
    drawn = any(points_of_sweep(records, context) for context in SWEEP_CONTEXTS)
    text = "Speed-up over the fastest dense peer against the share of entries left out"
    image = f"![{text}](figures/{FIGURE.name})\n\n" if drawn else ""
    return image + table(columns, rows)


def points_of_sweep(records: list[Record], context: int) -> list[tuple[float, float, float]]:
    """Sparsity, speed-up over the fastest dense peer, and byte limit of what was measured."""
    points = Points(records)
    found = []
    for keep in SWEEP:
        case = DecodeCase(8, 8, context, Stored(keep))
        ours, dense = points.ours(case), points.best_peer(case)
        if ours is not None and dense is not None:
            ratio = dense.median_ms / ours.median_ms
            found.append((1 - keep / 128, ratio, ours.facts["byte_limit"]))
    return found


def _is_other(case: DecodeCase) -> bool:
    shape = (case.batch, case.kv_heads, case.context)
    usual = case in (DecodeCase(*shape, k=k, v=v) for k, v in CACHES) and shape in NINE_SHAPES
    groups = shape == (8, 32, 16_384) and case == DecodeCase(*shape, k=KEEP_40)
    swept = case.k.keep in SWEEP and case == DecodeCase(*shape, k=case.k) and shape in NINE_SHAPES
    return groups or not (usual or swept or case.note)


def _row(points: Points, case: DecodeCase) -> list[str]:
    ours, dense = points.ours(case), points.best_peer(case)
    sizes = [str(n) for n in case.shape]
    backend = ours.backend if ours else NOTHING if len(case.backends) > 1 else case.backends[0]
    peer = NOTHING if dense is None else f"{dense.backend} {ms(dense)}"
    what = [*sizes, dtype_name(case.dtype), case.variant, backend]
    return [*what, peer, ms(ours), speed_up(ours, dense), _limit(case), share(ours)]


def _time_and_ratio(ours: Record | None, dense: Record | None) -> str:
    return NOTHING if ours is None else f"{ms(ours)}, {speed_up(ours, dense)}"


def _limit(case: DecodeCase) -> str:
    """What the bytes alone would allow."""
    return f"{case.dense_bytes / case.bytes:.2f}x"


def _numbers(shape: tuple[int, int, int]) -> list[str]:
    return [f"{n:,}" for n in shape]


GPU_TABLES: dict[str, Callable[[list[Record]], str]] = {
    "decode": headline,
    "decode-shapes": shapes,
    "decode-others": others,
    "decode-lengths": lengths,
    "decode-pages": pages,
    "decode-sweep": sweep,
    "decode-mustafar": mustafar,
}
CPU_TABLES: dict[str, Callable[[list[Record]], str]] = {"decode-cpu": cpu}

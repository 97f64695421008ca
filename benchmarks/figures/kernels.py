"""Kernels against what bytes and arithmetic allow."""

from benchmarks.figures.chart import Axis, Chart, Panel, Series
from benchmarks.records import Benchmarks, MissingRecordsError
from benchmarks.reports.decode import points_of_sweep
from benchmarks.suites.decode_cases import SWEEP_CONTEXTS
from gossamer.bench import Record
from gossamer.bench.peers import Peers, defaults
from gossamer.ops import OPS

DECODE = ("decode_attention", "decode_codes")
SPEED_UP = "speed-up over the fastest dense peer"
FAMILIES = {
    "attention": ("decode_attention", "masked_attention", "prefill_attention"),
    "GEMM": (
        *("linear", "linear_act", "linear_norm", "gated_mlp", "gemm_chain"),
        *("linear_int8", "linear_fp8"),
    ),
    "KV cache": (
        *("kv_pack", "kv_unpack", "kv_append", "rope_append"),
        *("kv_page_copy", "kv_page_swap"),
    ),
}
EIGHT_BITS = ("linear_int8", "linear_fp8")
GROUPS = ("dense, 16 bits", "dense codes", "sparse, 16 bits", "sparse codes", "coded rows")
ELEMENTWISE = "elementwise, norms, softmax"


def decode_speedup(found: Benchmarks) -> Chart:
    """Speed-up of decode attention against sparsity, with the limit that bytes set."""
    records = found.records("decode_attention")
    lines = {context: points_of_sweep(records, context) for context in SWEEP_CONTEXTS}
    if not any(lines.values()):
        raise MissingRecordsError(
            f"no sweep over sparsity on {found.device}; "
            "`python -m benchmarks.suites.decode_attention` on a GPU makes it"
        )
    series = []
    for context, line in lines.items():
        x, y, _ = zip(*line, strict=True) if line else ((), (), ())
        name = f"8 sequences of {context:,} tokens"
        series.append(Series(name, tuple(100 * s for s in x), tuple(y)))
    x, _, limit = zip(*max(lines.values(), key=len), strict=True)
    series.append(Series("limit set by the bytes", tuple(100 * s for s in x), tuple(limit), "rule"))
    panel = Panel(
        "", Axis("entries of K and V left out, %"), Axis(SPEED_UP, low=0), tuple(series), one=True
    )
    title = f"Decode attention, 32 query and 8 KV heads of 128, float16, {found.name}"
    return Chart(title, (panel,), size=(7, 4))


def decode_limit(found: Benchmarks) -> Chart:
    """Every cache that was timed: speed-up against what its bytes would allow."""
    panels = []
    for head_dim in (64, 128):
        groups: dict[str, list[tuple[float, float]]] = {}
        for file in DECODE:
            records = found.known(file)
            peer_of = Peers(records)
            for record in defaults(records):
                peer = peer_of(record)
                if peer is not None and record.shape[4] == head_dim and record.facts:
                    ratio = peer.median_ms / record.median_ms
                    own = groups.setdefault(_group(record), [])
                    own.append((record.facts["byte_limit"], ratio))
        series = []
        for number, name in enumerate(GROUPS):
            x, y = zip(*sorted(groups[name]), strict=True) if name in groups else ((), ())
            series.append(Series(name, x, y, "points", color=number))
        most = max((x for s in series for x in s.x), default=1.0)
        ends = (0.8, float(most))
        series.append(Series("limit set by the bytes", ends, ends, "rule"))
        title = f"heads of {head_dim}"
        x_axis = Axis("bytes of the dense cache / bytes of this one", "log")
        panels.append(Panel(title, x_axis, Axis(SPEED_UP, "log"), tuple(series), one=True))
    if not any(s.x for panel in panels for s in panel.series[:-1]):
        raise MissingRecordsError(f"no decode attention on {found.device}")
    note = (
        f"{found.name}; each point is one cache at one shape. Below 1: slower than the fastest "
        "dense kernel at that shape."
    )
    return Chart("Decode attention against its limit", tuple(panels), 2, note, (4.4, 3.6))


def _group(record: Record) -> str:
    variant = record.variant
    eight = any(kind in variant for kind in ("int", "fp8"))
    if "keep=" in variant:
        return GROUPS[3] if eight else GROUPS[2]
    if "x" in variant and "@row" in variant:
        return GROUPS[4]
    return GROUPS[1] if eight else GROUPS[0]


def roofline(found: Benchmarks) -> Chart:
    """Each op that was measured, at its largest point, under the measured ceilings."""
    records = [r for r in found.everything() if r.op in OPS and r.bytes > 0]
    largest: dict[str, Record] = {}
    for record in defaults(records):
        known = largest.get(record.op, record)
        largest[record.op] = max(known, record, key=lambda r: (_half(r), r.bytes + r.flops))
    if not largest:
        raise MissingRecordsError(f"no records of ops on {found.device}")
    groups: dict[str, list[Record]] = {}
    for record in largest.values():
        family = next((n for n, ops in FAMILIES.items() if record.op in ops), ELEMENTWISE)
        groups.setdefault(family, []).append(record)
    series, moved = [], []
    for number, (name, own) in enumerate(sorted(groups.items())):
        computing = [r for r in own if r.flops]
        x = tuple(r.flops / r.bytes for r in computing)
        y = tuple(r.flops / r.median_ms / 1e9 for r in computing)
        texts = tuple(r.op for r in computing)
        series.append(Series(name, x, y, "points", labels=texts, color=number))
        moving = [r for r in own if not r.flops]
        x_moved, y_moved = tuple(r.op for r in moving), tuple(r.gbps for r in moving)
        if moving:
            moved.append(Series(name, x_moved, y_moved, "bars", color=number))
    intensity, rate = Axis("operations per byte", "log"), Axis("TFLOP/s", "log")
    panels = [Panel("", intensity, rate, _lines(records, series))]
    if moved:
        title = "no arithmetic: bytes moved"
        panels.append(Panel(title, Axis(""), Axis("GB/s", low=0), tuple(moved)))
    return Chart(
        f"Roofline: each measured op at its largest point, {found.name}",
        tuple(panels),
        columns=2,
        note="16 bits where an op has them. Operations and bytes are what an op needs at the "
        "least, so a kernel that reads "
        "something twice is below the line. Bytes moved: appending is a few rows, swapping goes "
        "to the host. The slope is the bandwidth of a large copy on the same machine, the heights "
        "are the "
        "fastest GEMMs of all records, those of peers among them."
        f"{_without_records(largest)}",
        size=(6.2, 5.0),
    )


def _without_records(known: dict[str, Record]) -> str:
    missing = ", ".join(op for op in sorted(OPS) if op not in known)
    return f" Without records here: {missing}." if missing else ""


def _half(record: Record) -> bool:
    return record.dtype in ("float16", "bfloat16")


def _lines(records: list[Record], series: list[Series]) -> tuple[Series, ...]:
    """With the slope of the copy bandwidth and the heights of the fastest GEMMs."""
    bandwidth = max(r.ceiling_gbps for r in records) / 1e3  # TB/s
    places = [float(x) for s in series for x in s.x]
    lines = []
    for eight in (False, True):
        rates = [
            r.flops / r.median_ms / 1e9
            for r in records
            if r.op in FAMILIES["GEMM"] and (r.op in EIGHT_BITS) == eight
        ]
        if rates:
            peak = max(rates)
            x = (min(places), peak / bandwidth, 2 * max(*places, peak / bandwidth))
            y = (min(places) * bandwidth, peak, peak)
            lines.append(Series("copy bandwidth, fastest GEMM in 16 and 8 bits", x, y, "rule"))
    return (*series, *lines)

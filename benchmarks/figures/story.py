"""The story in pictures: what a token's cache is made of, what it costs, what it gives."""

import math
from itertools import groupby
from typing import Any

import torch

from benchmarks.end_to_end.loads import LOADS, equal_sequences
from benchmarks.figures.chart import Axis, Chart, Panel, Picture, Row, Series
from benchmarks.figures.render import heading
from benchmarks.records import Benchmarks, Line, MissingRecordsError
from benchmarks.reports import codes
from gossamer import plotting
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

HEAD_DIM = 64
KEPT = 32
# K and V of one token in one head, as SmolLM2's calibration has them.
PAIRS = {
    "dense": (BlockFormat(HEAD_DIM), BlockFormat(HEAD_DIM)),
    "sparse:k=32,v=32": (BlockFormat(HEAD_DIM, KEPT), BlockFormat(HEAD_DIM, KEPT)),
    "dense:int4": (BlockFormat(HEAD_DIM, None, "int4"), BlockFormat(HEAD_DIM, None, "int4")),
    "coded:23.5%": (
        BlockFormat(HEAD_DIM, None, "8x8+4x40+2x16", "row"),
        BlockFormat(HEAD_DIM, None, "4x16+3x32+2x16", "row"),
    ),
    "14% of the bytes": (
        BlockFormat(HEAD_DIM, None, "4x8+3x16+2x24+0x16", "row"),
        BlockFormat(HEAD_DIM, None, "4x8+2x48+0x8", "row"),
    ),
}
BIT_COLORS = {8: plotting.PURPLE, 4: plotting.ORANGE, 3: plotting.PINK, 2: plotting.GREEN}
QUALITY = "quality/smollm2-135m.jsonl"
SMALL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6.5, "color": "#333333"}
LOSS = Axis("change in NLL per token", "symlog", linear=0.01)
# Peers whose numbers are of the same text; others were measured on half of it.
PEERS = ("kivi", "mustafar", "streaming", "turboquant", "fp8", "int8")
# Short names of the caches whose speed is known.
NAMES = codes.TIMED | {codes.SPARSE: "half kept, int4"}
FAMILIES = ("coded rows", "dense codes", "sparse and codes", "sparse, 16 bits", "other methods")


# ---- a token's cache -----------------------------------------------------------------------------


Cell = tuple[float, str, str]  # bits, colour, what it is


class Token(Picture):
    """Bars whose length is bytes, whose cells are entries: K above, V below."""

    def draw(self, figure: Any) -> None:
        axes = figure.subplots()
        names: dict[str, Any] = {}
        for place, (name, pair) in enumerate(PAIRS.items()):
            for side, fmt in enumerate(pair):
                at = self._bar(axes, place + 0.37 * side - 0.185, _cells(fmt, seed=side), names)
                bits = 8 * fmt.nbytes / BLOCK_TOKENS
                assert abs(at - bits) < 1e-6, f"{name}: {at} bits are drawn of {bits}"
                axes.annotate("KV"[side], (0, place + 0.37 * side - 0.1), (-8, 0), **SMALL)
            text = f"{_bytes(pair):.0f} bytes, {_share(pair):.1%}"
            end = 8 * max(fmt.nbytes for fmt in pair) / BLOCK_TOKENS
            axes.annotate(text, (end, place + 0.08), (6, 0), **(SMALL | {"fontsize": 9}))
        axes.set_yticks(range(len(PAIRS)), PAIRS, fontsize=9)
        axes.tick_params(axis="y", length=0, pad=14)
        axes.set_xlim(0, 16 * HEAD_DIM * 1.22)
        axes.set_ylim(len(PAIRS) - 0.5, -0.5)
        axes.set_xlabel("bits of one token in one head", fontsize=8)
        axes.grid(visible=False)
        plotting.plain_ticks(axes.xaxis)
        heading(figure, self.title, names, self.size[0])

    def _bar(self, axes: Any, place: float, cells: list[Cell], names: dict[str, Any]) -> float:
        """Its length in bits."""
        at = 0.0
        edges: list[float] = []
        for (width, color, name), own in groupby(cells):
            count = len(list(own))
            bar = axes.barh(place, count * width, 0.33, at, color=color)
            names.setdefault(name, bar)
            edges += [at + i * width for i in range(count if width > 1 else 1)]
            at += count * width
        x = [x for edge in edges for x in (edge, edge, math.nan)]
        y = [place - 0.17, place + 0.17, math.nan] * len(edges)
        axes.plot(x, y, color="white", linewidth=0.4)
        return at


def _cells(fmt: BlockFormat, seed: int) -> list[Cell]:
    """What a row is made of."""
    full = (16.0, plotting.BLUE, "entry, 16 bits")
    if fmt.keep is not None:
        return [(1.0, plotting.GREY, "bitmap: which entries")] * HEAD_DIM + [full] * fmt.keep
    if fmt.profile is None:
        row = torch.randn(HEAD_DIM, generator=torch.Generator().manual_seed(seed)).abs()
        kept = row >= row.sort(descending=True).values[KEPT - 1]
        less = (16.0, "#b9d6e2", "entry that pruning leaves out")
        return [full if keep else less for keep in kept]
    channels = [bits for bits in fmt.profile.bits for _ in range(8) if bits]
    cells = [(float(bits), BIT_COLORS[bits], f"entry, {bits} bits") for bits in channels]
    return cells + [(16.0, plotting.RED, "scale of the row")] * (fmt.scales == "row")


def _bytes(pair: tuple[BlockFormat, BlockFormat]) -> float:
    return sum(fmt.nbytes for fmt in pair) / BLOCK_TOKENS


def _share(pair: tuple[BlockFormat, BlockFormat]) -> float:
    return _bytes(pair) / _bytes(PAIRS["dense"])


def token(_: Benchmarks) -> Picture:
    """What the cache of one token is made of, to scale."""
    rows: list[Row] = [
        {"panel": name, "series": "bytes", "x": HEAD_DIM, "y": _bytes(pair)}
        | {"label": f"{_share(pair):.1%}"}
        for name, pair in PAIRS.items()
    ]
    note = (
        f"K and V of one token in one head of {HEAD_DIM}, as SmolLM2 has, drawn to scale from the "
        "block format. Sparse rows keep the largest "
        "entries and say which they are. Coded rows are turned into a calibrated basis first, "
        "whose channels matter more or less: each "
        "8 of them have 8, 4, 3, 2 or 0 bits."
    )
    return Token("One token in the cache, dense and compressed", note, (8.6, 3.6), rows)


# ---- quality, bytes, speed -----------------------------------------------------------------------


def quality_memory(found: Benchmarks) -> Chart:
    """Quality against bytes: every cache, other methods, and the frontier of ours."""
    rows = [r for r in found.lines(QUALITY) if r["spec"] not in ("dense", "exact")]
    series = []
    for number, family in enumerate(FAMILIES):
        own = sorted((r for r in rows if _family(r) == family), key=lambda r: r["share"])
        x = tuple(100 * r["share"] for r in own)
        y = tuple(r["nll_change"] for r in own)
        ends = [tuple(r["nll_change"] + sign * r["nll_half"] for r in own) for sign in (-1, 1)]
        texts = tuple(r["spec"] if r["peer"] else NAMES.get(r["spec"], "") for r in own)
        color = 7 if family == "other methods" else number
        shown = Series(family, x, y, "points", ends[0], ends[1], texts, color)
        series += [shown] if own else []
    best: list[Line] = []
    for row in sorted((r for r in rows if not r["peer"]), key=lambda r: r["share"]):
        if not best or row["nll_change"] < best[-1]["nll_change"]:
            best.append(row)
    x, y = tuple(100 * r["share"] for r in best), tuple(r["nll_change"] for r in best)
    series.append(Series("frontier of ours", x, y, "rule"))
    axis = Axis("bytes of a dense 16-bit cache, %", low=10, high=80)
    return Chart(
        f"Quality against bytes: {rows[0]['model']} on WikiText-2",
        (Panel("", axis, LOSS, tuple(series)),),
        note="Bars are 95% intervals over windows of the text; the scale is linear below 0.01. "
        "Lower and further left is better. Methods "
        "that need the whole prompt (SnapKV, ThinK, expected attention) were measured on half of "
        "the text and are in docs/evaluation.md.",
        size=(8.4, 4.8),
    )


def _family(row: Line) -> str:
    spec = row["spec"]
    if row["peer"]:
        return "other methods" if spec.split(":")[0] in PEERS else ""
    if "coded" in spec:
        return "coded rows"
    if "sparse" not in spec:
        return "dense codes"
    return "sparse and codes" if "int" in spec else "sparse, 16 bits"


def quality_speed(found: Benchmarks) -> Chart:
    """The caches that were timed: quality against bytes and against speed."""
    rows = {r["spec"]: r for r in found.lines(QUALITY)}
    records = found.records(codes.FILE)
    timed = [(rows[spec], name, codes.speed_up_of(records, spec)) for spec, name in NAMES.items()]
    shown = [(row, name, speed) for row, name, speed in timed if speed is not None]
    y = tuple(row["nll_change"] for row, _, _ in shown)
    ends = [tuple(row["nll_change"] + s * row["nll_half"] for row, _, _ in shown) for s in (-1, 1)]
    share = tuple(100 * row["share"] for row, _, _ in shown)
    speeds = tuple(float(speed) for _, _, speed in shown)
    texts = tuple(f"{name}: {speed:.2f}x" for _, name, speed in shown)
    sized = tuple(f"{name}: {row['share']:.0%}" for row, name, _ in shown)
    dense = Series("dense, 16 bits", (1.0,), (0.0,), "points", labels=("dense",), color=7)
    names = "cache", "cache"
    return Chart(
        "Quality, bytes and speed of compressed caches",
        (
            Panel(
                "how fast is written beside",
                *(Axis("bytes of a dense 16-bit cache, %", low=10, high=60), LOSS),
                (Series(names[0], share, y, "points", ends[0], ends[1], texts, 0),),
            ),
            Panel(
                "how many bytes is written beside",
                *(Axis("decode attention, times as fast as dense", low=0.8, high=3.8), LOSS),
                (Series(names[1], speeds, y, "points", ends[0], ends[1], sized, 0), dense),
            ),
        ),
        columns=2,
        note="Quality: SmolLM2-135M on WikiText-2, 95% intervals, linear below 0.01. Time: "
        f"{found.name}, 8 x 32,768 tokens, float16, heads "
        "of 128, over the fastest dense kernel.",
        size=(4.9, 3.9),
    )


# ---- throughput and latency ----------------------------------------------------------------------

LOAD_FILE = "serving/loads.jsonl"
SHORT_NAMES = {
    "k=coded:8x16+4x80+2x32@row,v=coded:4x32+3x64+2x32@row": "coded 23%",
}


def throughput_latency(found: Benchmarks) -> Chart:
    """Tokens/s against the time of a token, and of request mixes; vLLM's of another day."""
    latest = {
        (r["model"], r["kv"], r["work"]): r
        for r in found.lines(LOAD_FILE)
        if r.get("run") == "second"
    }
    if not latest:
        raise MissingRecordsError(f"{found.folder / LOAD_FILE} has no second run of a load")
    theirs = found.table("data/vllm_h200.csv")
    device = next(iter(latest.values()))["device"]
    return Chart(
        "Throughput and latency of the engine, and of vLLM 0.24",
        (_equal(latest, theirs), *_mixes(latest, theirs)),
        columns=3,
        note=f"{device}, random bfloat16 weights, greedy, no prefix cache, second runs. vLLM's "
        "figures are of another day on a machine of "
        "the same kind. Points are named by sequences x tokens of context.",
        size=(3.9, 3.3),
    )


Latest = dict[tuple[str, str, str], Line]


def _equal(latest: Latest, theirs: list[dict[str, str]]) -> Panel:
    """Decode steps: milliseconds of a token, and tokens/s of all sequences."""
    points: dict[str, list[tuple[float, float, str]]] = {}
    for (model, kv, work), line in latest.items():
        equal = equal_sequences(work)
        if model == "llama-3-8b" and equal is not None and line["step_ms"] > 0:
            own = points.setdefault(f"gossamer, {SHORT_NAMES.get(kv, kv)}", [])
            own.append((line["step_ms"], 1e3 * equal[0] / line["step_ms"], _size(equal)))
    for row in theirs:
        equal = equal_sequences(row["work"])
        if row["what"] == "step_ms" and equal is not None:
            middle = (float(row["low"]) + float(row["high"])) / 2
            own = points.setdefault(f"vLLM, {row['kv']}", [])
            own.append((middle, 1e3 * equal[0] / middle, _size(equal)))
    series = []
    for number, (name, own) in enumerate(sorted(points.items())):
        x, y, texts = zip(*sorted(own), strict=True)
        series.append(Series(name, x, y, "points", labels=texts, color=_color(name, number)))
    axes = Axis("milliseconds of an output token", low=0), Axis("output tokens/s", low=0)
    return Panel("decoding, Llama 3 8B's shape", *axes, tuple(series))


def _mixes(latest: Latest, theirs: list[dict[str, str]]) -> list[Panel]:
    """Requests of mixed lengths, all at once."""
    panels = []
    for model, title in (("llama-3-8b", "Llama 3 8B's shape"), ("llama-135m", "a shape of 135M")):
        bars: dict[str, list[tuple[str, float]]] = {}
        for (name, kv, work), line in latest.items():
            if name == model and work in LOADS:
                own = bars.setdefault(f"gossamer, {SHORT_NAMES.get(kv, kv)}", [])
                own.append((_mix(work), line["output_tps"]))
        for row in theirs:
            if row["model"] == model and row["what"] == "output_tps":
                own = bars.setdefault(f"vLLM, {row['kv']}", [])
                own.append((_mix(row["work"]), (float(row["low"]) + float(row["high"])) / 2))
        series = []
        for number, (name, own) in enumerate(sorted(bars.items())):
            x, y = zip(*own, strict=True)
            series.append(Series(name, x, y, "bars", color=_color(name, number)))
        if series:
            panels.append(Panel(title, Axis(""), Axis("output tokens/s", low=0), tuple(series)))
    return panels


def _color(name: str, number: int) -> int:
    known = {"gossamer, dense": 0, "gossamer, coded 23%": 1, "vLLM, bf16": 7, "vLLM, fp8": 5}
    return known.get(name, 2 + number)


def _size(equal: tuple[int, int]) -> str:
    return f"{equal[0]} x {equal[1]:,}"


def _mix(work: str) -> str:
    load = LOADS[work]
    prompts, outputs = ("-".join(f"{n:,}" for n in ends) for ends in (load.inputs, load.outputs))
    return f"{load.requests} requests,\n{prompts} in, {outputs} out"

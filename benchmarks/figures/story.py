"""The story in pictures: what caches cost and give, the engine's speed, what it means in GPUs."""

from benchmarks.end_to_end.loads import LOADS, equal_sequences
from benchmarks.figures.chart import Axis, Chart, Panel, Series
from benchmarks.records import Benchmarks, Line, MissingRecordsError
from benchmarks.reports import codes, planning

QUALITY = "quality/smollm2-135m.jsonl"
LOSS = Axis("change in NLL per token", "symlog", linear=0.01)
# Peers whose numbers are of the same text; others were measured on half of it.
PEERS = ("kivi", "mustafar", "streaming", "turboquant", "fp8", "int8")
# Short names of the caches whose speed is known.
NAMES = codes.TIMED | {codes.SPARSE: "half kept, int4"}
FAMILIES = ("coded rows", "dense codes", "sparse and codes", "sparse, 16 bits", "other methods")


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
                *(Axis("bytes of a dense 16-bit cache, %", low=0, high=60), LOSS),
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

LOAD_FILES = {"gossamer": "serving/loads.jsonl", "vLLM": "serving/loads_vllm.jsonl"}
SHORT_NAMES = {
    "gossamer, k=coded:8x16+4x80+2x32@row,v=coded:4x32+3x64+2x32@row": "gossamer, coded 23%",
    "vLLM, dense": "vLLM, bf16",
}
OUTPUT = "output tokens/s"
Latest = dict[tuple[str, str, str], Line]  # by name of engine and cache, model, work


def throughput_latency(found: Benchmarks) -> Chart:
    """Tokens/s against the time of a token, and of request mixes; vLLM on the same machine."""
    latest: Latest = {}
    for engine, file in LOAD_FILES.items():
        for line in found.lines(file):
            if line.get("run") == "second":
                name = f"{engine}, {line['kv']}"
                latest[SHORT_NAMES.get(name, name), line["model"], line["work"]] = line
    if not latest:
        files = " and ".join(LOAD_FILES.values())
        raise MissingRecordsError(f"{files} in {found.folder} have no second run of a load")
    device = next(iter(latest.values()))["device"]
    return Chart(
        "Throughput and latency of the engine, and of vLLM 0.24",
        (_equal(latest), *_mixes(latest)),
        columns=3,
        note=f"{device}, random bfloat16 weights, greedy, no prefix cache, second runs, one engine "
        "after the other. Points are named by sequences x tokens of context.",
        size=(3.9, 3.3),
    )


def _equal(latest: Latest) -> Panel:
    """Decode steps: milliseconds of a token, and tokens/s of all sequences."""
    points: dict[str, list[tuple[float, float, str]]] = {}
    for (name, model, work), line in latest.items():
        equal = equal_sequences(work)
        if model == "llama-3-8b" and equal is not None and line["step_ms"] > 0:
            point = (line["step_ms"], 1e3 * equal[0] / line["step_ms"], _size(equal))
            points.setdefault(name, []).append(point)
    series = []
    for number, (name, own) in enumerate(sorted(points.items())):
        x, y, texts = zip(*sorted(own), strict=True)
        series.append(Series(name, x, y, "points", labels=texts, color=_color(name, number)))
    right = 1.3 * max((x for s in series for x in s.x if isinstance(x, float)), default=1.0)
    axes = Axis("milliseconds of an output token", low=0, high=right), Axis(OUTPUT, low=0)
    return Panel("decoding, Llama 3 8B's shape", *axes, tuple(series))


def _mixes(latest: Latest) -> list[Panel]:
    """Requests of mixed lengths, all at once."""
    panels = []
    for shape, title in (("llama-3-8b", "Llama 3 8B's shape"), ("llama-135m", "a shape of 135M")):
        bars: dict[str, list[tuple[str, float]]] = {}
        for (name, model, work), line in latest.items():
            if model == shape and work in LOADS:
                bars.setdefault(name, []).append((_mix(work), line["output_tps"]))
        series = []
        for number, (name, own) in enumerate(sorted(bars.items())):
            x, y = zip(*own, strict=True)
            series.append(Series(name, x, y, "bars", color=_color(name, number)))
        if series:
            panels.append(Panel(title, Axis(""), Axis(OUTPUT, low=0), tuple(series)))
    return panels


def _color(name: str, number: int) -> int:
    known = {"gossamer, dense": 0, "gossamer, coded 23%": 1, "vLLM, bf16": 7, "vLLM, fp8": 5}
    return known.get(name, 2 + number)


def _size(equal: tuple[int, int]) -> str:
    return f"{equal[0]} x {equal[1]:,}"


def _mix(work: str) -> str:
    load = LOADS[work]
    prompts, outputs = ("-".join(f"{n:,}" for n in ends) for ends in (load.inputs, load.outputs))
    return f"{load.requests} requests,\n{prompts} in,\n{outputs} out"


# ---- the planner ---------------------------------------------------------------------------------

PLANNED = {"8b": "Llama 3 8B", "70b": "Llama 3 70B"}
RATE = 1_000  # requests per second


def planner(_: Benchmarks) -> Chart:
    """GPUs that a rate of requests needs, by cache: planned, from measured kernels."""
    panels = []
    for name, title in PLANNED.items():
        counts = planning.gpus_needed(name, RATE)
        x = tuple("KIVI-4" if spec == codes.KIVI else spec for spec in counts)
        y = tuple(float(count) for count in counts.values())
        texts = tuple(f"{count:,}" for count in counts.values())
        series = (Series("GPUs", x, y, "bars", labels=texts),)
        panels.append(Panel(title, Axis(""), Axis(f"GPUs for {RATE:,} requests/s", low=0), series))
    return Chart(
        f"Planned: H200 GPUs for {RATE:,} requests/s of 32,512 tokens in, 256 out",
        tuple(panels),
        columns=2,
        note="Not measured as a whole: composed of measured kernels by `gossamer plan`, bfloat16 "
        "weights, without prefixes in common. "
        "docs/planning.md compares such plans with measured runs.",
        size=(4.6, 3.2),
    )

"""What Mustafar's paper shows, published and ours: quality, parts of a step, bytes, tokens/s."""

from dataclasses import replace

from benchmarks.figures.chart import Axis, Chart, Panel, Series
from benchmarks.records import Benchmarks, MissingRecordsError, short_model
from benchmarks.reports.decode import Points
from benchmarks.suites.decode_cache import DecodeCase, Stored
from benchmarks.suites.decode_cases import KEEP_40, SWEEP
from gossamer.bench import Record

SOURCE = "Mustafar, NeurIPS 2025"
QUALITY = "quality/smollm2-135m.jsonl"
SPARSITY = Axis("entries of K and V left out, %", low=-4, high=100)
HEAD_DIM = 64  # of SmolLM2, on which quality is measured
# Caches by what is kept of HEAD_DIM entries, of K and of V.
PLAIN = {"sparse:k=32,v=32": 32, "sparse:k=19,v=19": 19, "sparse:k=13,v=13": 13}
BASES = {
    "sparse:k=32,v=32,v_basis=pca,k_policy=weighted": 32,
    "sparse:k=19,v=19,basis=pca,k_policy=weighted": 19,
    "sparse:k=13,v=13,basis=pca,k_policy=weighted": 13,
}
THEIRS = {"mustafar:0.5": 32, "mustafar:0.7": 19}
FAMILIES = {
    "ours, by magnitude": PLAIN,
    "ours, in calibrated bases": BASES,
    "Mustafar's rule, simulated": THEIRS,
}


def quality(found: Benchmarks) -> Chart:
    """Quality against sparsity."""
    rows = {row["spec"]: row for row in found.lines(QUALITY)}
    where = f"{rows['dense']['model']}: ours"
    losses, lookups = [], []
    for number, (name, caches) in enumerate(FAMILIES.items()):
        own = [rows[spec] for spec in caches if spec in rows]
        left = tuple(100 - 100 * keep / HEAD_DIM for spec, keep in caches.items() if spec in rows)
        y = tuple(row["nll_change"] for row in own)
        ends = [tuple(r["nll_change"] + sign * r["nll_half"] for r in own) for sign in (-1, 1)]
        losses.append(Series(name, left, y, low=ends[0], high=ends[1], color=number))
        y = tuple(100 * row["lookup"] for row in own)
        ends = [tuple(100 * row[f"lookup_{end}"] for row in own) for end in ("low", "high")]
        lookups.append(Series(name, left, y, low=ends[0], high=ends[1], color=number))
    dense = Series("dense", (0.0, 100.0), (100 * rows["dense"]["lookup"],) * 2, "rule")
    right = Axis("right answers, %", low=0)
    loss = Axis("change in NLL per token", "symlog", low=-0.005, high=1)
    return Chart(
        "Quality against sparsity",
        (
            _longbench(found),
            Panel(f"WikiText-2, {where}", SPARSITY, loss, tuple(losses)),
            Panel(f"lookups, {where}", SPARSITY, right, (*lookups, dense)),
        ),
        columns=3,
        note="Values of 16 bits, window of 32 tokens; bars are 95% intervals. Models and tasks "
        "differ: compare shapes of "
        "curves, not heights. The scale of NLL is linear below 0.01.",
        size=(3.7, 3.0),
    )


def _longbench(found: Benchmarks) -> Panel:
    rows = [r for r in found.table("published/mustafar.csv") if r["what"] == "quality"]
    series = []
    for number, cache in enumerate(("K", "V", "K and V")):
        own = [r for r in rows if r["cache"] in (cache, "dense")]
        x = tuple(100 * float(r["sparsity"]) for r in own)
        name = f"pruned: {cache}"
        series.append(Series(name, x, tuple(float(r["value"]) for r in own), color=4 + number))
    axis = Axis("LongBench, average score", low=40, high=44)
    return Panel(rows[0]["model"], SPARSITY, axis, tuple(series), SOURCE)


# ---- time ----------------------------------------------------------------------------------------

STEPS = ((8, 8, 32_768), (32, 8, 4_096))
PARTS = (
    *("attention over pages", "attention over the window"),
    *("prune, pack and append", "fastest dense attention"),
)
APPENDED = 256  # sequences that kv_append was timed at


def breakdown(found: Benchmarks) -> Chart:
    """Parts of a decode step of one layer: attention, the window, pruning with packing."""
    points = Points(found.records("decode_attention"))
    append = _append(found.known("kv_append"))
    parts: dict[str, dict[str, float]] = {name: {} for name in PARTS}
    places: list[str] = []
    for shape in STEPS:
        case, place = DecodeCase(*shape, k=KEEP_40), f"{shape[0]} x {shape[2]:,}"
        plain, window = points.ours(case), points.ours(replace(case, window=32))
        peer = points.best_peer(DecodeCase(*shape))
        if plain and window and peer:
            more = max(0.0, window.median_ms - plain.median_ms)
            places += [f"{place}\n70% pruned", f"{place}\ndense"]
            for name, ms in zip(PARTS, (plain.median_ms, more, append), strict=False):
                parts[name][places[-2]] = ms
            parts[PARTS[-1]][places[-1]] = peer.median_ms
    if not places:
        raise MissingRecordsError(
            f"no decode attention with and without a window on {found.device}; "
            "`python -m benchmarks.suites.decode_attention` on a GPU makes it"
        )
    stacks = tuple(
        Series(name, tuple(places), tuple(own.get(p, 0.0) for p in places), "stack", color=color)
        for (name, own), color in zip(parts.items(), (0, 1, 2, 7), strict=True)
    )
    where = Axis("sequences x tokens")
    packed = Panel("packing 65,536 tokens", Axis(""), Axis("milliseconds", "log"), _packs(found))
    return Chart(
        "A decode step of one layer, and packing prompts",
        (Panel("decode step: ours", where, Axis("milliseconds"), stacks), packed),
        columns=2,
        note=f"{found.name}, 32 query and 8 KV heads of 128, float16, 40 of 128 entries kept. "
        "Pruning and packing are one "
        f"kernel: there is no mask in memory between them. Appending was timed at {APPENDED} "
        "sequences, so it is an upper bound "
        "here. The window's part is the difference of two timings. No published times of the "
        "parts are kept.",
        size=(4.6, 3.2),
    )


def _append(records: list[Record]) -> float:
    """Milliseconds for all sequences of a step, K and V."""
    times = [
        r.median_ms
        for r in records
        if (r.backend, r.dtype, r.variant) == ("cuda", "float16", "keep=40")
    ]
    return min(times, default=0.0)


def _packs(found: Benchmarks) -> tuple[Series, ...]:
    records = found.known("kv_pack")
    wanted = tuple(map(_kept, ("keep=64", "keep=40", "keep=40 int8", "keep=40 int4")))
    series = []
    for number, (backend, name) in enumerate((("eager", "plain torch"), ("cuda", "our kernel"))):
        own = {
            _kept(r.variant): r.median_ms
            for r in records
            if (r.backend, r.dtype, r.shape) == (backend, "float16", [65536, 8, 128])
        }
        x = tuple(v for v in wanted if v in own)
        series.append(Series(name, x, tuple(own[v] for v in x), "bars", color=(3, 5)[number]))
    return tuple(series)


def _kept(variant: str) -> str:
    return variant.replace("keep=", "keep ")


# ---- memory --------------------------------------------------------------------------------------


def memory(found: Benchmarks) -> Chart:
    """Bytes of K and V against sparsity."""
    points = Points(found.records("decode_attention"))
    kept = {}
    for keep in SWEEP:
        ours = points.ours(DecodeCase(8, 8, 4_096, Stored(keep)))
        if ours is not None:
            kept[keep] = 100 / ours.facts["byte_limit"]
    others = [
        (Stored(40, "int8"), None, "40 kept, int8"),
        (Stored(None, "int4", "channel"), Stored(40, "int4"), "K int4, V 40 kept in int4"),
    ]
    labelled = []
    for k, v, name in others:
        ours = points.ours(DecodeCase(8, 8, 4_096, k=k, v=v))
        left = 100 * (1 - 40 / 128) if v is None else 100 * (0.5 - 20 / 128)
        if ours is not None:
            labelled.append((left, 100 / ours.facts["byte_limit"], name))
    rows = [r for r in found.table("published/mustafar.csv") if r["what"] == "memory"]
    share = Axis("bytes of a dense 16-bit cache, %", low=0, high=125)
    exact = Series("without bitmap", (0.0, 100.0), (100.0, 0.0), "rule")
    published = Series(
        "Mustafar",
        tuple(100 * float(r["sparsity"]) for r in rows),
        tuple(100 * float(r["value"]) for r in rows),
        "points",
        color=4,
    )
    x = tuple(100 - 100 * keep / 128 for keep in kept)
    ours_lines = [Series("gossamer, values of 16 bits", x, tuple(kept.values()), color=0)]
    if labelled:
        x, y, names = zip(*labelled, strict=True)
        ours_lines.append(Series("gossamer, fewer bits", x, y, "points", labels=names, color=1))
    return Chart(
        "KV memory against sparsity",
        (
            Panel("K and V pruned alike", SPARSITY, share, (published, exact), SOURCE),
            Panel("heads of 128: ours", SPARSITY, share, (*ours_lines, exact)),
        ),
        columns=2,
        note=f"Ours: bytes that decode attention reads, from the records of {found.name}: each "
        "row of 128 entries has a bitmap of "
        "16 bytes, and rows of one block have the same number of entries, so there are no offsets.",
        size=(4.2, 3.1),
    )


def throughput(found: Benchmarks) -> Chart:
    """Tokens per second in the same memory, and at the same batch."""
    (speed,) = (r for r in found.table("published/mustafar.csv") if r["what"] == "speed")
    published = Series("Mustafar", ("at most",), (float(speed["value"]),), "bars", color=4)
    axis = Axis("tokens/s over Hugging Face dense", low=0)
    panels = [Panel("batch 8", Axis(""), axis, (published,), SOURCE, one=True)]
    panels += [p for p in (_transformers(found, axis), _capacity(found)) if p is not None]
    return Chart(
        "Tokens per second",
        tuple(panels),
        columns=3,
        note=f"Ours: {found.name}, Llama 3 8B's shape, random bfloat16 weights. Hugging Face: "
        "`generate` at 8 x 16,384 tokens with "
        "its own dense cache, and with ours. Engine: as many sequences of a length as fit into "
        "the KV memory named.",
        size=(3.8, 3.0),
    )


def _transformers(found: Benchmarks, axis: Axis) -> Panel | None:
    records = found.known("transformers_cache")
    base = next((r for r in records if r.backend != "gossamer"), None)
    if base is None:
        return None
    ours = [r for r in records if r.backend == "gossamer"]
    x = tuple(_short(r.variant) for r in ours)
    y = tuple(base.median_ms / r.median_ms for r in ours)
    series = (Series("gossamer in transformers", x, y, "bars", color=0),)
    return Panel("batch 8: ours", Axis(""), axis, series, one=True)


def _short(spec: str) -> str:
    return spec.replace("sparse:", "").replace("dense:", "")


def _capacity(found: Benchmarks) -> Panel | None:
    """Engines in the same KV memory: more sequences of a smaller cache."""
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in found.known("engine_throughput"):
        if record.backend == "gossamer" and "kv_bytes" in record.facts:
            model, _ = short_model(record.variant)
            groups.setdefault((model, record.shape[1]), []).append(record)
    if not groups:
        return None
    (model, context), own = max(groups.items(), key=lambda group: (len(group[1]), group[0][1]))
    points: dict[str, list[tuple[float, float]]] = {}
    for record in own:
        at = (float(record.shape[0]), record.facts["full_batch_tokens_per_second"])
        points.setdefault(short_model(record.variant)[1], []).append(at)
    series = []
    for number, (cache, places) in enumerate(sorted(points.items())):
        x, y = zip(*sorted(places), strict=True)
        texts = tuple(f"{n:.0f} sequences" for n in x)
        series.append(Series(f"engine, {cache}", x, y, labels=texts, color=number + 1))
    size = max(record.facts["kv_bytes"] for record in own) / 1e9
    title = f"{model} in {size:.3g} GB of KV cache: ours"
    right, top = (1.25 * max(at[side] for own in points.values() for at in own) for side in (0, 1))
    x_axis = Axis(f"sequences of {context:,} tokens", low=0, high=right)
    axes = x_axis, Axis("output tokens/s", low=0, high=top)
    return Panel(title, *axes, tuple(series))

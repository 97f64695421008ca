"""What STOF's paper shows of fused operators and whole models, published and ours."""

from collections.abc import Iterable

from benchmarks.figures import fusion
from benchmarks.figures.chart import Axis, Chart, Panel, Series
from benchmarks.records import Benchmarks
from gossamer.bench import Record
from gossamer.bench.peers import defaults

SOURCE = "STOF, PPoPP 2026, {}"
DEVICES = ("A100", "RTX 4090")
SIZES = (("1", "128"), ("8", "512"), ("16", "2048"))  # batch and tokens of models
MODELS = {
    "bert_small": "BERT small",
    "bert_base": "BERT base",
    "bert_large": "BERT large",
    "gpt": "GPT",
    "llama_base": "LLaMA",
    "t5": "T5",
    "vit_base": "ViT",
}
SHAPES = {"fused_residual_layernorm": "batch x tokens x hidden size"}
Row = dict[str, str]
# The published pairs of operators, and ours of the same kind.
PAIRS = {
    "Bias+LayerNorm": ("fused_residual_layernorm", "residual + LayerNorm"),
    "GEMM+LayerNorm": ("linear_norm", "GEMM + norm"),
    "GEMM+GEMM": ("gemm_chain", "GEMM + GEMM"),
}


def ratios(
    rows: Iterable[Row], column: str, of: str, over: str, value: str = "ms"
) -> dict[tuple[str, ...], float]:
    """Times of `over` by those of `of`, at each point that has both."""
    times: dict[str, dict[tuple[str, ...], float]] = {of: {}, over: {}}
    for row in rows:
        if row[column] in times:
            place = tuple(v for k, v in row.items() if k not in (column, value))
            times[row[column]][place] = float(row[value])
    return {p: times[over][p] / t for p, t in times[of].items() if p in times[over]}


# ---- figures 3 and 4: pairs of operators ---------------------------------------------------------


def fused(found: Benchmarks) -> Chart:
    """Fused against separate operators."""
    rows = found.table("published/stof_fig03.csv")
    panels = pair_panels(rows, "fused", "separate", "separate / fused time")
    panels += [_ours(found, *PAIRS[name]) for name in PAIRS]
    return Chart(
        "Fused against separate operators",
        tuple(panels),
        columns=3,
        note="Above 1: fusing wins. STOF compares Triton with PyTorch, hidden sizes 512 and "
        "1,024. "
        f"Ours ({found.name}): the backend users get, 16 bits (float32 on a CPU), against eager "
        "PyTorch "
        "and torch.compile; our first pair adds a residual where theirs adds a bias.",
    )


def pair_panels(rows: list[Row], of: str, over: str, label: str) -> list[Panel]:
    panels = []
    for device in DEVICES:
        for name in PAIRS:
            own = [r for r in rows if (r["device"], r["operators"]) == (device, name)]
            series = []
            for hidden in ("512", "1024"):
                at = [r for r in own if r["hidden"] == hidden]
                made = ratios(at, "variant", of, over)
                places = [f"{p[2]} x {int(p[3]):,}" for p in made]
                kind = f"hidden size {int(hidden):,}"
                series.append(Series(kind, tuple(places), tuple(made.values()), "bars"))
            axis = Axis(label, "log")
            where = SOURCE.format(device)
            panels.append(Panel(name, Axis("batch x tokens"), axis, tuple(series), where, one=True))
    return panels


def _ours(found: Benchmarks, op: str, title: str) -> Panel:
    """Speed-ups at the points of one op in the usual dtype."""
    records = [r for r in found.known(op) if not r.variant.startswith("rms")]
    ours = [r for r in defaults(records) if r.dtype == _dtype(records)]
    series = []
    for number, (peer, name) in enumerate((("eager", "over eager"), ("compile", "over compiled"))):
        by_point = {r.point: r for r in records if r.backend == peer}
        pairs = [(r, by_point[r.point]) for r in ours if r.point in by_point]
        x = tuple("x".join(map(str, r.shape)) for r, _ in pairs)
        y = tuple(p.median_ms / r.median_ms for r, p in pairs)
        series.append(Series(name, x, y, "bars", color=2 + number))
    axis, shape = Axis("peer / fused time", "log"), Axis(SHAPES.get(op, "rows x sizes of GEMMs"))
    return Panel(f"{title}: ours", shape, axis, tuple(series), one=True)


def _dtype(records: list[Record]) -> str:
    dtypes = {r.dtype for r in records}
    return "bfloat16" if "bfloat16" in dtypes and any(_gpu(r) for r in records) else "float32"


def _gpu(record: Record) -> bool:
    return record.backend in ("cuda", "triton")


# ---- figures 11, 12, 13 and table 4: whole models ------------------------------------------------


def end_to_end(found: Benchmarks) -> Chart:
    """Whole models, times as fast as native PyTorch."""
    rows = found.table("published/stof_fig11.csv")
    methods = ("PyTorch-compile", "ByteTransformer", "MCFuser", "Bolt", "STOF")
    panels = [
        _models(rows, device, size, "method", methods, "PyTorch-native")
        for device in DEVICES
        for size in SIZES
    ]
    return Chart(
        "Whole models: times as fast as native PyTorch",
        (*panels, *fusion.times(found, fusion.METHODS)),
        columns=3,
        note="STOF: BigBird's mask, fp16; a bar that is missing failed or was not run. "
        "" + fusion.note(found),
        size=(3.9, 2.6),
    )


def ablation(found: Benchmarks) -> Chart:
    """Attention alone, fusion alone, and both."""
    rows = [r for r in found.table("published/stof_fig12.csv") if r["device"] == "A100"]
    variants = ("STOF only-MHA", "STOF only-fusion", "STOF")
    panels = [_models(rows, "A100", size, "variant", variants, "PyTorch-native") for size in SIZES]
    return Chart(
        "What attention and fusion bring: times as fast as native PyTorch",
        (*panels, *fusion.times(found, fusion.PARTS)),
        columns=3,
        note="STOF: BigBird's mask, fp16, A100. " + fusion.note(found),
        size=(3.9, 2.6),
    )


def _models(
    rows: list[Row],
    device: str,
    size: tuple[str, str],
    column: str,
    names: tuple[str, ...],
    base: str,
) -> Panel:
    own = [r for r in rows if r["device"] == device and (r["batch"], r["tokens"]) == size]
    series = []
    for number, name in enumerate(names):
        made = ratios(own, column, name, base)
        x = tuple(MODELS[p[1]] for p in made)
        series.append(Series(name, x, tuple(made.values()), "bars", color=number))
    axis, title = Axis("speed-up", "log"), f"{size[0]} x {int(size[1]):,} tokens"
    return Panel(title, Axis(""), axis, tuple(series), SOURCE.format(device), one=True)


def overhead(found: Benchmarks) -> Chart:
    """What the search takes besides timing."""
    rows = [r for r in found.table("published/stof_fig13.csv") if r["device"] == "A100"]
    parts = ("analytical_model", "hash_encoding", "numerical_decoding", "reward")
    panels = []
    for size in SIZES:
        own = [r for r in rows if (r["batch"], r["tokens"]) == size]
        whole = {r["model"]: float(r["ms"]) for r in own if r["component"] == "total_tuning"}
        series = []
        for part in parts:
            at = [r for r in own if r["component"] == part]
            x = tuple(MODELS[r["model"]] for r in at)
            y = tuple(float(r["ms"]) for r in at)
            last = part == parts[-1]
            texts = tuple(f"{whole[r['model']] / 1e3:.0f} s" for r in at) if last else ()
            series.append(Series(part.replace("_", " "), x, y, "stack", labels=texts))
        title = f"{size[0]} x {int(size[1]):,} tokens"
        panels.append(
            Panel(title, Axis(""), Axis("milliseconds"), tuple(series), SOURCE.format("A100"))
        )
    return Chart(
        "Tuning overhead besides timing candidates",
        (*panels, *fusion.tuning_parts(found)),
        columns=3,
        note="On top of each bar: all of the tuning time, most of which no published part "
        "accounts for. " + fusion.note(found),
        size=(3.9, 2.6),
    )


def tuning(found: Benchmarks) -> Chart:
    """Seconds of tuning, by method."""
    rows = [r for r in found.table("published/stof_table4.csv") if r["device"] == "A100"]
    panels = []
    for size in SIZES:
        series = []
        for method in ("MCFuser", "Bolt", "STOF"):
            at = [r for r in rows if (r["method"], r["batch"], r["tokens"]) == (method, *size)]
            x = tuple(MODELS[r["model"]] for r in at)
            series.append(Series(method, x, tuple(float(r["seconds"]) for r in at), "bars"))
        title = f"{size[0]} x {int(size[1]):,} tokens"
        axis = Axis("seconds of tuning", "log")
        panels.append(Panel(title, Axis(""), axis, tuple(series), SOURCE.format("A100")))
    return Chart(
        "Tuning cost",
        (*panels, *fusion.tuning_seconds(found)),
        columns=3,
        note="STOF's re-run of its own script times one cold forward (0.2 to 1.3 s) and is not "
        "drawn. " + fusion.note(found),
        size=(3.9, 2.6),
    )

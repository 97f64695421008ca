"""What is drawn is what was measured: charts against records, artists against charts."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.figures import stof
from benchmarks.figures.chart import Chart, as_csv
from benchmarks.figures.command import COMMITTED, digest
from benchmarks.figures.render import figure_of
from benchmarks.records import Benchmarks
from gossamer import plotting
from gossamer.bench import read_records, write_records

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def records(file):
    path = BENCHMARKS / f"results/nvidia-h200/{file}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def published(file):
    return list(csv.DictReader((BENCHMARKS / f"published/{file}.csv").open()))


def values(chart, series, panel=""):
    """x -> y of a series, in the panels whose title has these words."""
    return {
        row["x"]: row["y"]
        for row in chart.rows()
        if row["series"] == series and panel in f"{row['panel']} {row['published']}"
    }


def ms(lines, **wanted):
    (line,) = (r for r in lines if all(r[key] == value for key, value in wanted.items()))
    return line["median_ms"]


# The mask gallery; STOF's figures and table; Mustafar's; ours; the story in pictures.
ASKED = (
    *("mask-gallery", "stof-fig03", "stof-fig04", "stof-fig09-a100", "stof-fig10-rtx4090"),
    *("masked-attention", "stof-fig11", "stof-fig12", "stof-fig13", "stof-table4"),
    *("mustafar-quality", "mustafar-step", "mustafar-memory", "mustafar-throughput"),
    *("decode_speedup", "decode-limit", "quality-memory", "roofline"),
    *("token-cache", "cache-semantics", "quality-speed", "throughput-latency", "planner"),
)


def test_every_figure_of_the_issue_is_there(charts):
    assert set(ASKED) == set(charts)
    for name, chart in charts.items():
        assert chart.rows(), name
        assert all(math.isfinite(row["y"]) for row in chart.rows()), name


def test_decode_speedup(charts):
    lines = records("decode_attention")
    point = {"shape": [8, 32, 8, 32768, 128], "dtype": "float16"}
    peers = [r["median_ms"] for r in lines if r["shape"] == point["shape"]]
    dense = min(
        r["median_ms"]
        for r in lines
        if (r["shape"], r["dtype"]) == (point["shape"], "float16") and "sdpa" in r["backend"]
    )
    assert dense in peers
    drawn = values(charts["decode_speedup"], "8 sequences of 32,768 tokens")
    ours = ms(lines, **point, variant="keep=64", backend="cuda")
    assert drawn[50.0] == pytest.approx(dense / ours)


def test_fused_operators(charts):
    lines = records("gemm_chain")
    point = {"shape": [1, 4096, 16384], "dtype": "bfloat16"}
    ratio = ms(lines, **point, backend="eager") / ms(lines, **point, backend="cuda")
    drawn = values(charts["stof-fig03"], "over eager", "GEMM + GEMM: ours")
    assert drawn["1x4096x16384"] == pytest.approx(ratio)
    rows = [r for r in published("stof_fig03") if r["device"] == "A100" and r["hidden"] == "512"]
    own = [
        r for r in rows if (r["operators"], r["tokens"], r["batch"]) == ("GEMM+GEMM", "128", "8")
    ]
    times = {r["variant"]: float(r["ms"]) for r in own}
    drawn = values(charts["stof-fig03"], "hidden size 512", "GEMM+GEMM STOF, PPoPP 2026, A100")
    assert drawn["8 x 128"] == pytest.approx(times["separate"] / times["fused"])


@pytest.mark.parametrize(
    ("name", "device"), [("stof-fig09-a100", "A100"), ("stof-fig10-rtx4090", "RTX 4090")]
)
def test_published_attention(charts, name, device):
    rows = [r for r in published("stof_fig09_10") if r["device"] == device]
    chosen = {"mask": "longformer", "batch": "8", "method": "STOF"}
    own = [r for r in rows if all(r[k] == v for k, v in chosen.items())]
    drawn = values(charts[name], "STOF", "Longformer, batch 8")
    assert drawn == {float(r["tokens"]): float(r["ms"]) for r in own}
    assert len(drawn) == 6


def test_masked_attention(charts):
    lines = [r for r in records("masked_attention") if r["shape"] == [16, 12, 4096, 64]]
    flex = [r for r in lines if r["variant"] == "mask=stof-bigbird" and "flex" in r["backend"]]
    drawn = values(
        charts["masked-attention"], "FlexAttention, its fastest setting", "bigbird, batch 16"
    )
    assert drawn[4096.0] == min(r["median_ms"] for r in flex)
    ours = values(
        charts["masked-attention"], "gossamer, as its selector chooses", "bigbird, batch 16"
    )
    assert ours[4096.0] in [r["median_ms"] for r in lines if "candidate=" in r["variant"]]


def test_whole_models(charts):
    rows = [r for r in published("stof_fig11") if r["device"] == "A100" and r["model"] == "t5"]
    times = {r["method"]: float(r["ms"]) for r in rows if r["batch"] == "16"}
    drawn = values(charts["stof-fig11"], "STOF", "16 x 2,048 tokens STOF, PPoPP 2026, A100")
    assert drawn["T5"] == pytest.approx(times["PyTorch-native"] / times["STOF"])


def test_quality(charts):
    lines = (BENCHMARKS / "quality/smollm2-135m.jsonl").read_text().splitlines()
    rows = {row["spec"]: row for row in map(json.loads, lines)}
    drawn = values(charts["mustafar-quality"], "ours, by magnitude", "WikiText-2")
    assert drawn[50.0] == rows["sparse:k=32,v=32"]["nll_change"]
    drawn = values(charts["quality-memory"], "other methods")
    assert drawn[100 * rows["kivi:4"]["share"]] == rows["kivi:4"]["nll_change"]


def test_throughput(charts):
    lines = [json.loads(t) for t in (BENCHMARKS / "serving/loads.jsonl").read_text().splitlines()]
    own = [
        line["output_tps"]
        for line in lines
        if (line["work"], line.get("run"), line["kv"]) == ("small", "second", "dense")
    ]
    drawn = values(charts["throughput-latency"], "gossamer, dense", "a shape of 135M")
    assert next(iter(drawn.values())) == own[-1]


def test_our_whole_models(tmp_path):
    """The fastest of several ways counts, and masks are averaged."""
    (made,) = read_records(BENCHMARKS / "results/nvidia-h200/silu_mul.jsonl")[:1]
    ms_by_way = {"eager": 8.0, "compile": 4.0, "graphs": 5.0, "attention": 3.0, "tuned": 2.0}
    lines = [
        replace(
            made,
            op="fusion",
            backend=way,
            shape=[8, 512],
            variant=f"model=bert-base mask={mask} mode=default",
            median_ms=ms * factor,
            facts={"tune_total_s": 60.0, "tune_time_s": 50.0, "tune_build_s": 9.0},
        )
        for mask, factor in (("stof-bigbird", 1.0), ("causal", 0.5))
        for way, ms in ms_by_way.items()
    ]
    write_records(lines, tmp_path / "results/nvidia-h200/fusion.jsonl")
    found = Benchmarks.of(tmp_path)
    chart, panel = stof.end_to_end(found), "8 x 512 tokens: ours"
    assert values(chart, "gossamer", panel) == {"bert-base": pytest.approx(4.0)}
    assert values(chart, "torch.compile, its fastest mode", panel)["bert-base"] == pytest.approx(2)
    assert "not measured" not in chart.note
    assert values(stof.ablation(found), "attention alone", panel)["bert-base"] == pytest.approx(
        8 / 3
    )
    assert values(stof.overhead(found), "time", panel) == {"bert-base": 50.0}
    assert values(stof.tuning(found), "gossamer", panel) == {"bert-base": 60.0}


# ---- the pictures --------------------------------------------------------------------------------


def shown(axes):
    """What matplotlib has of each series: (x, y) of lines, (middle, end) of bars."""
    found = {}
    for line in axes.get_lines():
        if not line.get_label().startswith("_"):
            found.setdefault(line.get_label(), []).extend(zip(*line.get_data(), strict=True))
    for bars in axes.containers:
        if hasattr(bars, "patches") and bars.patches:
            found[bars.get_label()] = [
                (bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bars.patches
            ]
    return found


@pytest.mark.parametrize(
    "name", ["decode_speedup", "stof-fig11", "stof-fig13", "mustafar-quality", "roofline"]
)
def test_artists_have_the_values(charts, name):
    pytest.importorskip("matplotlib")
    chart = charts[name]
    with plotting.style():
        grid = figure_of(chart).axes
    for axes, panel in zip(grid, chart.panels, strict=False):
        drawn = shown(axes)
        ground = 1 if panel.one and panel.y.scale == "log" else 0
        rules = [s for s in panel.series if s.kind == "rule"]
        for series in panel.series:
            heights = [y for _, y in drawn.get(series.name, [])]
            if series in rules:
                assert set(series.y) <= set(heights)
                continue
            shift = ground if series.kind == "bars" else 0
            assert heights == pytest.approx([y - shift for y in series.y]), series.name
            if series.x and not isinstance(series.x[0], str):
                assert [x for x, _ in drawn[series.name]] == pytest.approx(list(series.x))


def test_committed_figures_are_those_of_the_records(charts):
    """Their values as CSV, and in each picture the digest of what it shows."""
    stems = {path.stem for path in COMMITTED.glob("*.csv")}
    assert stems == set(charts)
    for name, chart in charts.items():
        text = as_csv(chart.rows())
        assert (COMMITTED / f"{name}.csv").read_text() == text, f"{name}: run `make report`"
        assert digest(text) in (COMMITTED / f"{name}.svg").read_text(), f"{name}: run `make report`"


def test_committed_figures_are_small():
    sizes = {path.name: path.stat().st_size for path in COMMITTED.iterdir()}
    assert max(sizes.values()) < 150_000
    assert sum(sizes.values()) < 3_000_000


def test_published_panels_say_so(charts):
    for name, chart in charts.items():
        if isinstance(chart, Chart) and name.startswith(("stof", "mustafar")):
            whose = {panel.published.split(",")[0] for panel in chart.panels if panel.published}
            assert whose <= {"STOF", "Mustafar"}
            assert whose or name == "mustafar-step"

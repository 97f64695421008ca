"""The committed benchmarks: they run, and every file of results can be read."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reports.pages import PAGES, loss_table, updated
from benchmarks.suites.all import SUITES
from gossamer.bench import read_records
from gossamer.bench.suite import main
from gossamer.ops import BACKENDS, OPS

RESULTS = Path(__file__).parent.parent.parent / "benchmarks/results"


def test_every_op_has_a_suite():
    """But for masked_attention, whose points have many candidates: it has a driver of its own."""
    assert sorted([*(s.op for s in SUITES), "masked_attention"]) == sorted(OPS)


@pytest.mark.parametrize("suite", SUITES, ids=lambda s: s.op)
def test_suite_runs(suite):
    records = suite.run("cpu", quick=True, on_record=lambda _: None)
    native = {"cpu"} & set(OPS[suite.op].backends)
    measured = {r.backend for r in records}
    assert native <= measured
    assert measured - set(BACKENDS), "no peer"
    assert {r.dtype for r in records} == {"float32", "float16", "bfloat16"}
    assert all(r.median_ms > 0 and r.gbps > 0 for r in records)


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/*.jsonl")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_committed_results_are_records(path):
    records = read_records(path)
    assert records
    assert {r.op for r in records} == {path.stem.removesuffix("_shapes")}


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_show_the_committed_results(name):
    page = (RESULTS.parent.parent / name).read_text()
    assert "<!-- /" in page
    assert updated(page, RESULTS) == page, "run `make report`"


def test_a_loss_of_the_default_backend_is_told():
    """On a GPU that is cuda, whatever Triton does."""
    made = read_records(RESULTS / "nvidia-h200/fused_add_gelu.jsonl")[0]
    times = {"eager": 2.0, "triton": 1.0, "cuda": 3.0}
    records = [replace(made, backend=name, median_ms=ms) for name, ms in times.items()]
    assert "| cuda 3 ms | eager 2 ms | 0.67x |" in loss_table(records)
    assert loss_table([replace(r, median_ms=1.0) for r in records]) == "None of 1 points."


def test_a_point_without_peers_is_compared_at_its_shape():
    """As a sparse cache with peers on the dense one; without any peer it is no loss and no win."""
    made = read_records(RESULTS / "nvidia-h200/fused_add_gelu.jsonl")[0]
    peer = replace(made, backend="sdpa", variant="dense", median_ms=2.0)
    ours = replace(made, backend="cuda", variant="keep=40", median_ms=4.0)
    assert "| keep=40 | cuda 4 ms | sdpa 2 ms | 0.50x |" in loss_table([peer, ours])
    alone = replace(ours, shape=[7])
    assert loss_table([peer, alone]) == "None of 0 points."


@pytest.mark.parametrize(("arguments", "written"), [([], False), (["--results", "here"], True)])
def test_a_quick_look_leaves_the_results_alone(arguments, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["x", "--quick", "--device", "cpu", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main(SUITES[0])
    assert stopped.value.code == 0
    assert bool(list(tmp_path.rglob("*.jsonl"))) == written

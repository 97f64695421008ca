"""The committed benchmarks: they run, and every file of results can be read."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reports.ops import loss_table
from benchmarks.reports.pages import pages, tables, updated
from benchmarks.suites.all import SUITES
from gossamer.bench import read_records
from gossamer.bench.suite import main
from gossamer.ops import BACKENDS, OPS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"


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
    op = SHARED_OPS.get(path.stem, path.stem.removesuffix("_shapes"))
    assert {r.op for r in records} == {op}


# Results of an op or a run that has several files.
SHARED_OPS = {"decode_codes": "decode_attention", "engine_codes": "engine_decode"}


@pytest.mark.parametrize("path", pages(ROOT), ids=lambda p: p.name)
def test_the_pages_show_the_committed_results(path):
    page = path.read_text()
    assert updated(page, RESULTS) == page, "run `make report`"


def test_every_table_is_on_one_page():
    text = "".join(path.read_text() for path in pages(ROOT))
    assert {name: text.count(f"<!-- {name} -->") for name in tables()} == dict.fromkeys(tables(), 1)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (
            "<!-- kvv -->\n<!-- /kvv -->",
            "<!-- kvv --> is no table; must be one of chosen, ",
        ),
        ("<!-- kv -->\n", "<!-- kv --> is alone; must be a pair <!-- kv --> ... <!-- /kv -->"),
        ("<!-- /kv -->\n", "<!-- /kv --> is alone; must be a pair"),
        ("<!-- kv -->\n<!-- fused -->\n<!-- /kv -->", "<!-- kv --> is alone; must be a pair"),
    ],
)
def test_marks_that_are_wrong(page, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        updated(page, RESULTS)


def test_tables_without_records_say_so(tmp_path):
    page = "<!-- masked -->\n<!-- /masked -->\n<!-- kv -->\n<!-- /kv -->\n"
    made = updated(page, tmp_path)
    assert "<!-- masked -->\nNot measured on a GPU yet.\n" in made
    assert "<!-- kv -->\nNot measured yet.\n" in made


def test_other_comments_are_left_alone():
    page = "<!-- needs: gpu -->\n<!-- two words -->\n"
    assert updated(page, RESULTS) == page


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

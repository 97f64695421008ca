"""The committed benchmarks: they run, and every file of results can be read."""

from pathlib import Path

import pytest

from benchmarks.all import SUITES
from benchmarks.report import PAGES, updated
from gossamer.bench import read_records
from gossamer.ops import OPS

RESULTS = Path(__file__).parent.parent.parent / "benchmarks/results"


def test_every_op_has_a_suite():
    assert sorted(s.op for s in SUITES) == sorted(OPS)


@pytest.mark.parametrize("suite", SUITES, ids=lambda s: s.op)
def test_suite_runs(suite):
    records = suite.run("cpu", quick=True, on_record=lambda _: None)
    assert {"eager", "cpu"} <= {r.backend for r in records}
    assert {r.dtype for r in records} == {"float32", "float16", "bfloat16"}
    assert all(r.median_ms > 0 and r.gbps > 0 for r in records)


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/*.jsonl")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_committed_results_are_records(path):
    records = read_records(path)
    assert records
    assert {r.op for r in records} == {path.stem}


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_show_the_committed_results(name):
    page = (RESULTS.parent.parent / name).read_text()
    assert updated(page, RESULTS) == page, "run `make report`"

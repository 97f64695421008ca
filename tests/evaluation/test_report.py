"""Tables and figures: the numbers in them, and what they do without some."""

import math

import pytest
from rich.console import Console

from gossamer.evaluation.experiment import Result
from gossamer.evaluation.plots import draw, frontier
from gossamer.evaluation.report import markdown, rich_table, summarise
from gossamer.evaluation.store import Entry
from gossamer.evaluation.tasks import Score
from gossamer.kv.speed import DecodeSpeed

SPARSE = "sparse:k=32,v=32"


def entry(values, share=1.0, weight=1.0, metas=None, **more):
    scores = {
        f"{i}": Score(f"{i}", value, weight, metas[i] if metas else {})
        for i, value in enumerate(values)
    }
    return Entry(scores, 1000 * share, share, **{"finished": True, **more})


@pytest.fixture
def results():
    places = [{"depth": d, "length": n} for d in (0.0, 1.0) for n in (64, 128)]
    return [
        Result("dense", "perplexity", "nll", entry([20.0, 22.0], weight=10.0)),
        Result("dense", "needle", "accuracy", entry([1, 1, 1, 0], metas=places)),
        Result(SPARSE, "perplexity", "nll", entry([21.0, 22.0], 0.5625, 10.0)),
        Result(SPARSE, "needle", "accuracy", entry([1, 0, 0, 0], 0.5625, metas=places)),
    ]


def cells_of(text):
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def test_speeds(results):
    """A column more, where they are asked for; methods that have none of the engine's kernels."""
    speeds = {SPARSE: DecodeSpeed("cuda sparse", tuned=True, us=50.0, dense_us=100.0)}
    dense, sparse = cells_of(markdown(results, speeds=speeds))
    assert sparse["decode against dense"] == "2.00x (cuda sparse)"
    assert dense["decode against dense"] == "-"
    assert "decode against dense" not in cells_of(markdown(results))[0]
    console = Console(width=200, record=True)
    console.print(rich_table(results, speeds=speeds))
    assert "2.00x (cuda sparse)" in console.export_text()


def test_values_and_changes(results):
    dense, needle, sparse, found = summarise(results)
    assert dense.value.value == pytest.approx(math.exp(2.1))
    assert dense.change is needle.change is None
    assert sparse.change.value == pytest.approx(0.05)
    assert sparse.change.error == pytest.approx(0.05)  # differences of .1 and 0
    assert found.value.value == 0.25
    assert found.change.value == -0.5
    assert (found.change.won, found.change.lost, found.change.p) == (0, 2, 0.5)


def test_changes_are_over_shared_examples(results):
    del results[3].entry.scores["0"]
    change = summarise(results)[3].change
    assert (change.n, change.value) == (3, pytest.approx(-2 / 3))


def test_markdown(results):
    dense, sparse = cells_of(markdown(results))
    assert dense["cache"] == "`dense`"
    assert dense["bytes per token"] == "1,000"
    assert dense["share"] == "100.0%"
    assert dense["perplexity"].startswith("8.166 ± ")
    assert dense["change in perplexity"] == "-"
    assert sparse["share"] == "56.2%"
    assert sparse["change in perplexity"] == "+0.0500 ± 0.6353"  # 12.706 * 0.05
    assert sparse["needle"] == "25.0% (5 to 70)"
    assert sparse["change in needle"].startswith("-50.0 ± ")
    assert sparse["change in needle"].endswith(", p 0.5")


def test_rich_table(results):
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rich_table(results))
    text = console.export_text()
    for words in (SPARSE, "1,000", "+0.0500 ± 0.6353", "25.0% (5 to 70)"):
        assert words in text


def test_what_failed_or_is_not_done_says_so(results):
    results[2] = Result(SPARSE, "perplexity", "nll", Entry(error="ValueError: no"))
    results[3].entry.finished = False
    _, sparse = cells_of(markdown(results))
    assert sparse["perplexity"] == "failed"
    assert sparse["needle"] == "25.0% (5 to 70), only 4 scored"
    nothing = [Result("dense", "needle", "accuracy", Entry())]
    assert cells_of(markdown(nothing))[0]["share"] == "-"


def test_without_a_baseline_there_are_no_changes(results):
    (sparse,) = cells_of(markdown(results[2:]))
    assert sparse["change in perplexity"] == sparse["change in needle"] == "-"


def test_a_single_window_has_no_interval():
    (row,) = cells_of(markdown([Result("dense", "perplexity", "nll", entry([20.0], weight=10.0))]))
    assert row["perplexity"] == "7.389"


def test_frontier():
    points = [(1.0, 10.0), (0.5, 12.0), (0.4, 11.0), (0.4, 15.0), (0.9, 10.5), (0.2, 30.0)]
    assert frontier(points, higher=False) == [(0.2, 30.0), (0.4, 11.0), (0.9, 10.5), (1.0, 10.0)]
    assert frontier([(0.5, 0.6), (1.0, 0.6), (0.2, 0.1)], higher=True) == [(0.2, 0.1), (0.5, 0.6)]


def test_figures(results, tmp_path):
    pytest.importorskip("matplotlib")
    files = draw(results, tmp_path / "figures")
    names = {file.name for file in files}
    stems = ("quality-memory", "tasks", "needle")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert all(file.stat().st_size > 1000 for file in files)
    assert SPARSE in (tmp_path / "figures/quality-memory.svg").read_text()
    assert draw([Result("dense", "needle", "accuracy", Entry())], tmp_path) == []


def test_figures_without_matplotlib(results, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"gossamer\[plots\]"):
        draw(results, tmp_path)

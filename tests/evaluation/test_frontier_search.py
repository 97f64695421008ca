"""The search with an engine that is known in advance, and what it writes."""

import json
from math import nan

import pytest
import torch

from gossamer.evaluation.frontier.candidates import Budget, Problem
from gossamer.evaluation.frontier.measure import SearchError
from gossamer.evaluation.frontier.outcome import Aim, MeasuredCache, Outcome, choice, write_choice
from gossamer.evaluation.frontier.report import draw, markdown, verdict
from gossamer.evaluation.frontier.screening import Errors, kept_screening
from gossamer.evaluation.frontier.search import Effort
from gossamer.evaluation.progress import Stages
from gossamer.evaluation.statistics import Change
from gossamer.evaluation.store import Point, Store
from gossamer.kv import KVConfig, KVShape, Side
from gossamer.kv.bits import kernel_pairs
from gossamer.kv.layouts import Coded
from gossamer.kv.speed import DecodeSpeed, cuda_limits
from tests.evaluation.frontier import CONTEXT, SHAPE, Costly, cost_of, make_search
from tests.evaluation.frontier import screen_by_formula as formula


@pytest.fixture(scope="module")
def done():
    search, specs = make_search()
    return search, search.run(), specs


def test_the_recommended_cache_is_close_to_the_best_of_all(done):
    search, outcome, specs = done
    candidates, budget = search.problem.candidates(), search.problem.budget
    pairs = (KVConfig(k, v, sink=32) for k in candidates.k for v in candidates.v)
    best = min(cost_of(pair) for pair in pairs if budget.holds(pair, SHAPE))
    assert cost_of(outcome.recommended.config) <= 1.1 * best  # of about 40,000 pairs
    assert outcome.recommended.config.sink == 32
    assert outcome.recommended.share <= 0.25
    assert outcome.recommended.config.k.policy == "gradient"  # which screening alone ranks lower
    assert len(specs) <= 1 + 2 * 8 + 6 + 3 + 3


def test_rows_and_frontier(done):
    _, outcome, _ = done
    roles = [row.role for row in outcome.rows]
    assert (roles.count("dense"), roles.count("uniform")) == (1, 3)
    assert roles.count("pair") == 6
    for row in outcome.rows:
        assert row.share == row.config.share_at(SHAPE, 8192)
        assert row.layout_share == row.config.share(SHAPE)
        if row.role != "dense":
            assert row.added == pytest.approx(cost_of(row.config), rel=0.2)
    line = outcome.frontier
    assert [row.share for row in line] == sorted(row.share for row in line)
    assert [row.added for row in line] == sorted((row.added for row in line), reverse=True)
    assert line[-1].role == "dense"
    best = outcome.recommended
    assert all(r.added >= best.added for r in outcome.rows if r.share <= 0.25)


def test_the_gain_over_uniform_pruning(done):
    _, outcome, _ = done
    plain = next(row for row in outcome.rows if row.spec == "sparse:k=8,v=8")
    ratio = outcome.times_less(outcome.recommended)
    assert ratio == pytest.approx(plain.added / outcome.recommended.added)
    assert ratio > 3
    assert outcome.times_less(plain) is None
    assert f"{ratio:.1f} times less than sparse:k=8,v=8" in outcome.reason()
    assert "\n" not in verdict(outcome)


def test_tables(done):
    _, outcome, _ = done
    page = markdown(outcome)
    for row in outcome.rows:
        assert f"| `{row.spec}` | {row.share:.1%} | {row.layout_share:.1%} |" in page
    assert page.count("recommended |") == 1
    assert page.count("uniform pruning") == 3
    assert f"Use --kv {outcome.recommended.spec}: " in page


def test_the_file(done, tmp_path):
    search, outcome, _ = done
    path = tmp_path / "best.json"
    write_choice(path, choice(outcome, search.measuring))
    found = json.loads(path.read_text())
    assert found["kv"] == outcome.recommended.spec
    assert (found["model"], found["budget"], found["length"]) == ("fake", "25%", 8192)
    assert found["interval"][0] < found["nll_change"] < found["interval"][1]
    assert found["calibration"] == {"file": "made.safetensors", "sha256": "0123"}
    assert [line["kv"] for line in found["frontier"]] == [row.spec for row in outcome.frontier]
    assert "gossamer" in found["versions"]


def test_only_pairs_with_a_tuned_kernel(done):
    """Whatever is recommended is fast on a GPU."""
    search, outcome, _ = done
    assert search.problem.has_kernels
    pairs = [row.config for row in outcome.rows if row.role in ("pair", "variant")]
    assert pairs
    for config in pairs:
        assert cuda_limits(config, SHAPE, torch.float16) is None, str(config)
    assert cuda_limits(outcome.recommended.config, SHAPE, torch.float16) is None


def test_heads_without_any_kernel():
    shape = KVShape(2, 4, 2, 32)
    problem = Problem(shape, Budget.parse("30%", shape, 8192))
    assert not problem.has_kernels
    found = problem.candidates()
    assert all(problem.allows(k, v) for k in found.k for v in found.v)


def test_coded_rows_where_they_are_best():
    """Only in pairs that have a kernel of their own, next to pairs without codes."""
    search, _ = make_search(coded=True)
    outcome = search.run()
    pairs = {(row.config.k.layout, row.config.v.layout) for row in outcome.rows}
    coded = {pair for pair in pairs if any(isinstance(layout, Coded) for layout in pair)}
    assert coded
    assert coded <= set(kernel_pairs(64))
    best = outcome.recommended.config
    assert (best.k.layout, best.v.layout) in coded
    allowed = [KVConfig(Side(k), Side(v), sink=32) for k, v in kernel_pairs(64)]
    fitting = [pair for pair in allowed if search.problem.budget.holds(pair, SHAPE)]
    assert cost_of(best) <= min(cost_of(pair) for pair in fitting)


@pytest.mark.parametrize("worse", ["k", "v"])
def test_a_coded_side_is_judged_with_its_other_one(worse):
    """4 bits on both sides: with one side that layouts of its size beat, the pair still counts."""
    four = Coded("4x64", "row")

    def screening(candidates):
        errors = formula(candidates)
        for found in errors.values():
            found.k[Side(four)] = found.v[Side(four)] = 1e-6
            getattr(found, worse)[Side(four)] = 4.5e-3
        return errors

    search, specs = make_search("30%", coded=True)
    search.screening = screening
    search.run()
    assert any(spec.startswith("coded:4x64@row") for spec in specs)


def test_coded_rows_that_are_not_finite_are_left_out():
    search, specs = make_search(coded=True)

    def screening(candidates):
        errors = formula(candidates)
        for found in errors.values():
            found.k.update({s: nan for s in found.k if isinstance(s.layout, Coded)})
        return errors

    search.screening = screening
    search.run()
    assert not any("k=coded" in spec or spec.startswith("coded") for spec in specs)


def test_the_column_of_speeds():
    search, _ = make_search()
    slow = DecodeSpeed("triton", tuned=False, us=400.0, dense_us=100.0)
    search.speed = lambda config: slow
    outcome = search.run()
    assert "decoding against dense: 0.25x (triton)" in outcome.reason()
    assert "recommended, slow |" in markdown(outcome)
    found = choice(outcome, search.measuring)
    assert (found["kernel"], found["decode_against_dense"]) == ("triton", 0.25)


def test_the_plot(done, tmp_path):
    pytest.importorskip("matplotlib")
    files = draw(done[1], tmp_path / "figures")
    assert [file.name for file in files] == ["frontier.png", "frontier.svg"]
    assert all(file.stat().st_size > 1000 for file in files)
    assert done[1].recommended.spec in files[1].read_text()


def test_the_same_search_twice(done):
    search, specs = make_search()
    assert search.run().rows == done[1].rows
    assert specs == done[2]


def test_a_sink_that_does_not_help_is_left_out():
    search, specs = make_search()
    search.screening = lambda candidates: formula(candidates, with_sink=1.0)
    search.run()
    assert [spec for spec in specs if "sink" in spec] == [specs[-3]]  # as a variant


def test_without_a_calibration():
    search, specs = make_search(calibrated=False)
    outcome = search.run()
    assert not any(word in spec for spec in specs for word in ("pca", "weighted", "gradient"))
    assert choice(outcome, search.measuring)["calibration"] is None


# ---- going on, failing, and the clock -----------------------------------------------------------


def test_a_search_goes_on_where_it_was(done, tmp_path):
    path = tmp_path / "results.jsonl"
    opened = []

    def dies(spec):
        opened.append(spec)
        if len(opened) == 20:
            raise KeyboardInterrupt
        return Costly(spec)

    search, _ = make_search(store=Store(path), opened=dies)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    again, specs = make_search(store=Store(path))
    assert again.run().rows == done[1].rows
    assert opened[:19] + specs == done[2]
    idle, none = make_search(store=Store(path))
    assert idle.run().rows == done[1].rows
    assert none == []


def test_screening_is_kept(tmp_path):
    search, _ = make_search()
    candidates = search.problem.candidates()
    point = Point("screening", "error", {}, "fake", "sides", 0)
    calls = []

    def run(candidates):
        calls.append(candidates)
        return formula(candidates)

    path = tmp_path / "results.jsonl"
    first = kept_screening(Store(path), point, candidates, run)
    assert kept_screening(Store(path), point, candidates, run) == first
    assert len(calls) == 1
    other = make_search(budget="40%")[0].problem.candidates()  # has sides the file has not
    assert kept_screening(Store(path), point, other, run) == formula(other)
    assert len(calls) == 2


def test_caches_that_fail_are_left_out():
    def breaks(spec):
        if "int4" in spec:
            raise RuntimeError("no int4 today")
        return Costly(spec)

    outcome = make_search(opened=breaks)[0].run()
    assert not any("int4" in row.spec for row in outcome.rows)
    assert any("failed: RuntimeError: no int4 today" in note for note in outcome.notes)


def test_a_search_in_which_all_fail():
    def breaks(spec):
        if spec != "dense":
            raise RuntimeError("out of paper")
        return Costly(spec)

    with pytest.raises(SearchError, match=r"no cache within 25% was measured: .*out of paper"):
        make_search(opened=breaks)[0].run()

    def breaks_at_once(spec):
        raise RuntimeError("out of ink")

    with pytest.raises(SearchError, match=r"dense cache could not be measured: .*out of ink"):
        make_search(opened=breaks_at_once)[0].run()


def test_a_model_that_is_not_finite():
    search, _ = make_search()
    search.screening = lambda found: {
        0: Errors(dict.fromkeys(found.k, nan), dict.fromkeys(found.v, nan))
    }
    with pytest.raises(SearchError, match="not finite"):
        search.run()


def test_minutes_bound_the_search():
    """One pair is measured in any case."""
    effort = Effort(probe_tokens=CONTEXT, minutes=1e-9)
    search, specs = make_search(effort=effort)
    outcome = search.run()
    assert len(specs) == 2
    assert [row.role for row in outcome.rows].count("pair") == 1
    assert any("minutes were over" in note for note in outcome.notes)


@pytest.mark.parametrize(
    "wrong", [{"probes": -1}, {"pairs": 0}, {"probe_tokens": 0}, {"minutes": 0}, {"minutes": -1}]
)
def test_wrong_efforts(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} is {value}; must be"):
        Effort(**wrong)


def test_time_left():
    stages = Stages(shown=False)
    with stages:
        assert stages.left == ""
        stages.expect(10)
        stages.advance(5)
        assert stages.left == "under a minute left"
        stages._begin -= 600
        assert stages.left == "about 10 min left"
        stages.expect(-5)
        assert stages.left == ""


def test_aims():
    """The same rows, another idea of the best; a bound that nothing meets names the nearest."""
    budget = Budget.parse("60%", SHAPE, 8192)

    def row(spec, added, factor):
        speed = DecodeSpeed("toy", tuned=True, us=1 / factor, dense_us=1.0)
        config = KVConfig.parse(spec)
        return MeasuredCache.of(
            config, "pair", Change(added, 0.0, 10, 5, 5, 1.0), SHAPE, 8192, speed
        )

    rows = [
        row("dense:int8", 0.001, 1.5),
        row("dense:int4", 0.03, 3.0),
        row("sparse:k=8,v=8", 0.2, 2.0),
    ]

    def best(*aim):
        return Outcome.of(budget, rows, 17.0, (), Aim(*aim)).recommended.spec

    assert best() == best("quality") == "dense:int8"
    assert best("speed") == "dense:int4"
    assert best("bytes") == "sparse:k=8,v=8"
    assert best("bytes", 0.05) == "dense:int4"
    assert best("speed", 0.01) == "dense:int8"
    assert "the fastest of what was measured that adds at most +0.01" in str(Aim("speed", 0.01))
    with pytest.raises(SearchError, match=r"at most \+0.0005 NLL; the nearest is dense:int8"):
        best("speed", 0.0005)
    with pytest.raises(ValueError, match="objective is 'fun'; must be one of"):
        Aim("fun")
    with pytest.raises(ValueError, match="max_loss is -1; must be above 0"):
        Aim("speed", -1)

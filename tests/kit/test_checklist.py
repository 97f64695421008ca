"""`gossamer check-op`: says yes to a good op, and no to every way of being a bad one."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.suites.all import SUITES
from gossamer.bench.suite import Target
from gossamer.cli import check_op
from gossamer.cli.main import app
from gossamer.kit import checkout
from gossamer.kit.checklist import Fallback, Memory, Parity, check
from gossamer.kit.measuring import Running
from gossamer.kit.speed import mean_speedup, points_of, summary
from gossamer.ops import OPS
from tests.kit.given import Given, point, record

runner = CliRunner()


def failures(measure, target=Target()):  # noqa: B008
    return {q: a.figures for q, a in check(measure, target).items() if not a.passed}


def test_a_good_op_passes():
    answers = check(Given())
    assert all(a.passed for a in answers.values())
    assert answers["right"].figures == "cpu: largest error float32 1.0e-07 in 9 calls"
    assert answers["fast"].figures == "1.41x eager in the mean of 2; asked 1.2x"
    assert answers["fast"].values == {"mean": pytest.approx(2**0.5), "asked": 1.2}
    assert answers["good across sizes"].figures == "1.00x at worst (4x8 float16); asked 0.9x"
    assert answers["profiled"].figures == "gossamer::x: 90% of 0.5 ms in 1 kernel"


BAD = [
    ("right", {"parity": [Parity("cpu", 1, {}, "off by 1")]}, "cpu: off by 1"),
    ("right", {"parity": [Parity("reference", 9, {})]}, "no backend but the reference runs here"),
    ("fast", {"speed": [point(1.19)]}, "1.19x eager in the mean of 1; asked 1.2x"),
    ("fast", {"speed": []}, "no point with a backend of ours and a peer"),
    ("good across sizes", {"speed": [point(9.0), point(0.89)]},
     "0.89x at worst (4x8 float16); asked 0.9x; 1 of 2 points are slower"),
    ("memory sane", {"bytes": Memory(2 << 20, 1 << 20, "eager", 300, "here")},
     "2.1 MB beyond arguments and results (0.0003 MB), eager 1.05 MB (here)"),
    ("fallback works", {"fallback": [Fallback("cpu", "", "KeyError")]}, "only cpu: KeyError"),
    ("fallback works", {"fallback": []}, ""),
    ("profiled", {"profiled": None}, "the op is not in a profile of its own call"),
    ("documented", {"missing": ["no docstring", "no page"]}, "no docstring; no page"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "bad", "figures"), BAD)
def test_a_bad_op_fails(question, bad, figures):
    assert failures(Given(**bad)).get(question) == figures
    assert question == "fast" or set(failures(Given(**bad))) == {question}


@pytest.mark.parametrize(
    ("memory", "passes"),
    [
        (Memory(5 << 20, 6 << 20, "eager", 0, ""), True),  # less than eager
        (Memory(1 << 20, 0, "eager", 0, ""), True),  # a workspace
        (Memory(9 << 20, 0, "eager", 100 << 20, ""), True),  # small beside the tensors
        (Memory(11 << 20, 0, "eager", 100 << 20, ""), False),
    ],
)
def test_how_much_memory_is_sane(memory, passes):
    assert check(Given(bytes=memory))["memory sane"].passed == passes


def test_a_measurement_that_fails_is_an_answer():
    measure = Given()
    measure.memory = lambda: 1 // 0
    assert failures(measure) == {
        "memory sane": "ZeroDivisionError: integer division or modulo by zero"
    }


def test_another_target_is_told_with_its_reason():
    answers = check(Given(speed=[point(1.0)]), Target(1.0, reason="the product is the vendor's"))
    assert answers["fast"].passed
    assert answers["fast"].figures.endswith("asked 1x, because the product is the vendor's")
    assert "because" not in answers["good across sizes"].figures
    assert failures(Given(speed=[point(1.3)]), Target(2.0)).keys() == {"fast"}


@pytest.mark.parametrize("low", [{"mean": 1.1}, {"worst": 0.5}])
def test_a_lower_target_needs_a_reason(low):
    with pytest.raises(ValueError, match="must have a reason"):
        Target(**low)


def test_the_default_backend_counts_beside_eager():
    """Not the fastest of ours, and not the fastest of the others."""
    records = [
        record("eager", 4.0),
        record("clever", 1.0),
        record("triton", 1.0),
        record("cuda", 2.0),
    ]
    (found,) = points_of(records)
    assert (found.backend, found.peer, found.speedup) == ("cuda", "eager", 2.0)
    (found,) = points_of(records[:3])
    assert found.backend == "triton"


def test_without_eager_the_fastest_peer_of_the_shape_counts():
    records = [
        record("slow", 4.0, "dense"),
        record("sdpa", 2.0, "dense"),
        record("cpu", 1.0, "sparse"),
    ]
    (found,) = points_of(records)
    assert (found.peer, found.speedup) == ("sdpa", 2.0)
    assert points_of([record("cpu", 1.0)]) == []


def test_the_mean_is_geometric():
    points = [point(4.0), point(0.25)]
    assert mean_speedup(points) == pytest.approx(1.0)
    told = "1.00x as fast as eager in the geometric mean of 2 points, 0.25x at worst (4x8 float16)"
    assert summary(points) == told
    assert summary([]) == "measured, but not as one speed over a peer"


# ---- the command -------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch):
    """What the command measures, by op."""
    found = {name: Given() for name in OPS}
    monkeypatch.setattr(check_op, "Running", lambda name, device, **_: found[name])
    return found


def test_the_command(given, tmp_path):
    result = runner.invoke(app, ["check-op", "rope", "--json", str(tmp_path / "x.json")])
    assert result.exit_code == 0, result.output
    assert "ready: rope" in result.output
    assert "1.41x eager in the mean of 2; asked 1.2x" in result.output
    written = json.loads((tmp_path / "x.json").read_text())["rope"]
    assert written["passed"] is True
    assert written["answers"]["fast"]["values"]["asked"] == 1.2


def test_the_command_fails_for_a_broken_op(given, monkeypatch):
    broken = lambda x: OPS["silu_mul"].reference(x) * 1.01  # noqa: E731
    monkeypatch.setitem(OPS["silu_mul"]._runnable["cpu"], "cpu", broken)
    given["silu_mul"].parity = Running("silu_mul", "cpu", quick=True).parities()
    result = runner.invoke(app, ["check-op", "silu_mul"])
    assert result.exit_code == 1
    assert "cpu: relative error is 0.01; must be at most" in result.output
    assert "not ready: silu_mul" in result.output


def test_the_command_fails_if_one_op_does(given):
    given["linear"].speed = [point(0.5)]
    result = runner.invoke(app, ["check-op", "--all"])
    assert result.exit_code == 1
    assert "not ready: linear" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "there is no op 'nothing'; must be one of"),
        ([], "give names of ops, or --all"),
        (["rope", "--all"], "give names of ops, or --all"),
        (["rope", "--results", "nowhere"], "--results is nowhere; must be a folder"),
        (["rope", "--device", "tpu"], "--device is 'tpu'; must be cpu, cuda or auto"),
    ],
)
def test_bad_arguments(words, message):
    result = runner.invoke(app, ["check-op", *words])
    assert result.exit_code == 2
    assert message in result.output


def test_an_installed_wheel_cannot_be_checked(monkeypatch, tmp_path):
    monkeypatch.setattr(checkout.gossamer, "__file__", str(tmp_path / "site/gossamer/__init__.py"))
    result = runner.invoke(app, ["check-op", "rope"])
    assert result.exit_code == 2
    assert "is not a checkout of Gossamer (no CMakeLists.txt)" in " ".join(result.output.split())


def test_the_suites_that_ship_name_reasons():
    for suite in SUITES:
        assert suite.target.mean >= 1.2 or suite.target.reason

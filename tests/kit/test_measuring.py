"""The facts of an op, as they really are: its suite, its peak of memory, its profile, its page."""

from dataclasses import replace

import pytest
import torch

from gossamer.bench import write_records
from gossamer.bench.record import device_folder
from gossamer.bench.suite import Suite
from gossamer.kit import checkout
from gossamer.kit.checklist import check
from gossamer.kit.measuring import Running, best_device, suite_of
from gossamer.kit.memory import peak_beyond
from gossamer.kit.pages import arguments, docstring_gaps, undocumented
from gossamer.kit.speed import recorded
from gossamer.ops import OPS
from tests.kit.given import Given, record


def test_suites_of_all_ops():
    for name in OPS:
        assert suite_of(name).op == name


def test_an_op_is_checked_where_it_is_at_its_best(monkeypatch):
    for there, expected in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert best_device("silu_mul") == expected
        assert best_device("linear") == "cpu"  # has no kernel for a GPU
        assert best_device("gated_mlp") == "cpu"  # its suite says so
    with pytest.raises(ValueError, match="best of x is 'gpu'; must be cpu or cuda"):
        Suite("x", lambda device, quick: [], best="gpu")


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if "cpu" in op.available("cpu")])
def test_memory_and_profile_of_every_cpu_kernel(name):
    running = Running(name, "cpu", quick=True)
    memory = running.memory()
    assert check(Given(bytes=memory))["memory sane"].passed, memory
    found = running.profile()
    assert found.kernel == f"gossamer::{name}"
    assert 0 < found.share <= 1


def test_a_right_op():
    found = {p.backend: p for p in Running("silu_mul", "cpu", quick=True).parities()}
    assert {"reference", "cpu"} <= set(found)
    assert found["cpu"].problem == ""
    assert set(found["cpu"].errors) == {"float32", "float16", "bfloat16"}
    assert found["cpu"].inputs > 20  # its suite and its specification


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: -OPS["silu_mul"].reference(x),
        lambda x: OPS["silu_mul"].reference(x) * (1 + 1e-2),
        # Right for the suite's inputs, wrong for those of the specification, or for the example.
        lambda x: OPS["silu_mul"].reference(x) + (x.shape[-1] < 20),
        lambda x: OPS["silu_mul"].reference(x) + (x.shape == (3, 80)),
    ],
)
def test_a_broken_backend_is_not_right(monkeypatch, wrong):
    monkeypatch.setitem(OPS["silu_mul"]._runnable["cpu"], "cpu", wrong)
    running = Running("silu_mul", "cpu", quick=True)
    found = {p.backend: p.problem for p in running.parities()}
    assert found["reference"] == ""
    assert found["cpu"]
    answer = check(Given(parity=running.parities()))["right"]
    assert not answer.passed


def test_an_op_that_is_not_in_its_profile(monkeypatch):
    monkeypatch.setitem(OPS["silu_mul"]._runnable["cpu"], "cpu", OPS["silu_mul"].reference)
    assert Running("silu_mul", "cpu", quick=True).profile() is None


def test_speeds_of_result_files(tmp_path):
    path = tmp_path / device_folder("cpu") / "silu_mul.jsonl"
    records = [record("eager", 4.0), record("cpu", 2.0)]
    write_records(records, path)
    running = Running("silu_mul", "cpu", results=tmp_path)
    assert [p.speedup for p in running.points()] == [2.0]
    assert running.source == f"{path}, revision {records[0].revision}"
    assert Running("rope", "cpu", results=tmp_path).source == ""
    write_records([replace(r, variant="candidate=x") for r in records], path)
    assert recorded(path) == []


def test_a_suite_runs_once():
    running = Running("masked_attention", "cpu", quick=True)
    assert running.points() is running.points()
    assert {p.peer for p in running.points()} == {"eager"}


def test_peak_memory():
    x = torch.randn(1000, 500)  # 2 MB
    calls = {  # and what they take at the same time beyond their results
        lambda: x + 1: 0,
        lambda: (x + 1) * 2: 2e6,
        lambda: torch.sum((x + 1).exp() * (x + 2).exp()): 6e6,
        lambda: x.add_(1): 0,
    }
    for call, beyond in calls.items():
        assert peak_beyond(call, "cpu") == pytest.approx(beyond, abs=100)  # numbers are tensors too


DOCSTRING = "Does it. x, y: [n], float32. Returns [n]. Raises ValueError."


def test_docstrings_tell_everything():
    assert docstring_gaps(DOCSTRING, ["x", "y"]) == []
    assert docstring_gaps("", ["x"]) == ["no docstring"]
    assert docstring_gaps(DOCSTRING, ["x", "eps"]) == ["docstring without eps"]
    for word, gap in {
        "Raises": "errors (Raises)",
        "Returns": "the result",
        "float32": "dtypes",
    }.items():
        assert docstring_gaps(DOCSTRING.replace(word, ""), ["x"]) == [f"docstring without {gap}"]
    assert arguments("f(x: Tensor, n: int = 3, *, backend: str | None = None) -> Tensor") == [
        "x",
        "n",
    ]


def test_an_op_without_docs(tmp_path):
    missing = ["no docs/ops/silu_mul.md", "not in docs/ops/README.md"]
    assert undocumented("silu_mul", tmp_path) == missing
    (tmp_path / "docs/ops").mkdir(parents=True)
    (tmp_path / "docs/ops/silu_mul.md").write_text("# silu_mul\n")
    (tmp_path / "docs/ops/README.md").write_text("| [`silu_mul`](silu_mul.md) | gated | cpu |\n")
    stale = "docs/ops/silu_mul.md is stale: python -m gossamer.kit.pages --write"
    assert undocumented("silu_mul", tmp_path) == [stale]


@pytest.mark.parametrize("name", OPS)
def test_every_op_is_documented(name):
    assert undocumented(name, checkout.this_checkout()) == []


@pytest.mark.gpu
def test_peak_memory_on_the_gpu():
    x = torch.randn(1 << 20, device="cuda")
    assert peak_beyond(lambda: x + 1, "cuda") == 0
    assert peak_beyond(lambda: (x + 1) * 2, "cuda") == 4 << 20

"""`gossamer doctor` tells the truth, in words and in its exit code."""

import json

import pytest
import torch
from typer.testing import CliRunner

from gossamer import native
from gossamer._version import __version__
from gossamer.cli.main import app
from gossamer.ops import OPS

runner = CliRunner()


def test_a_healthy_machine():
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "Everything that should work here works." in result.output
    for name in OPS:
        assert name in result.output


def test_json_has_every_op_and_backend():
    found = json.loads(runner.invoke(app, ["doctor", "--json"]).output)
    cells = {(c["op"], c["backend"]): c["state"] for c in found["cells"]}
    assert set(cells) == {(name, b) for name, op in OPS.items() for b in op.backends}
    assert all(state == "works" for (_, backend), state in cells.items() if backend == "cpu")
    assert found["problems"] == []
    assert found["versions"]["torch"] == torch.__version__


def test_an_unavailable_backend_has_a_reason():
    found = json.loads(runner.invoke(app, ["doctor", "--json"]).output)
    for cell in found["cells"]:
        assert (cell["state"] == "works") == (cell["detail"] == "")


def test_a_wrong_kernel_is_a_problem(monkeypatch):
    op = OPS["element_wise_mul_add"]
    monkeypatch.setitem(op._runnable["cpu"], "cpu", lambda a, b, c: a * b - c)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "problem: element_wise_mul_add on cpu: AssertionError" in result.output
    assert "Everything" not in result.output


def test_a_missing_library_is_a_problem(monkeypatch):
    monkeypatch.setattr(native, "cpu", native.Library("_C", None, "_C.so is not built"))
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "problem: _C.so is not built: reinstall gossamer" in result.output


def test_a_cache():
    """Bytes, kernel and time here, and the kernel on a GPU."""
    arguments = ["doctor", "--kv", "dense:int4", "--heads", "4", "--kv-heads", "2"]
    arguments += ["--head-dim", "64", "--device", "cpu"]
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    here, gpu = json.loads(result.output)
    assert (here["kv"], here["device"], here["dtype"]) == ("dense:int4", "cpu", "float32")
    assert here["bytes_per_token"] == 2 * 2 * (32 + 2)
    assert here["speed"]["kernel"].startswith("cpu ")
    assert here["against_dense"] == here["speed"]["dense_us"] / here["speed"]["us"]
    assert (gpu["device"], gpu["speed"]["kernel"]) == ("a CUDA GPU", "cuda codes")
    assert gpu["against_dense"] is None
    text = runner.invoke(app, arguments).output
    for word in ("dense:int4", "26.6%", "cuda codes", "cpu", "measured at 2 x 4,096 tokens"):
        assert word in text


def test_a_cache_without_a_tuned_kernel():
    arguments = ["doctor", "--kv", "k=dense:int8,v=sparse:40:int4", "--device", "cpu"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "slow: k=dense:int8,v=sparse:40:int4 on a CUDA GPU by triton" in result.output


def test_the_cache_of_a_model():
    arguments = ["doctor", "--kv", "coded:25%", "--model", "smollm2", "--device", "cpu", "--json"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    here, _ = json.loads(result.output)
    assert here["share"] < 0.26


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv", "dense:int5"], "int5"),
        (["--kv", "dense", "--heads", "33"], "query_heads is 33"),
        (["--kv", "dense", "--heads", "64", "--kv-heads", "2"], "must be 1 to 16 times as many"),
        (["--kv", "dense", "--head-dim", "1000"], "head_dim is 1000"),
        (["--kv", "dense", "--model", "smollm2", "--heads", "4"], "--heads next to --model"),
        (["--kv", "dense", "--model", "nowhere"], "nowhere"),
        (["--model", "smollm2"], "are for --kv"),
    ],
)
def test_mistakes_about_caches(arguments, message):
    result = runner.invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_version():
    assert runner.invoke(app, ["--version"]).output.strip() == __version__


@pytest.mark.parametrize("arguments", [["doctor", "--fast"], ["cure"]])
def test_unknown_options_are_errors(arguments):
    assert runner.invoke(app, arguments).exit_code == 2

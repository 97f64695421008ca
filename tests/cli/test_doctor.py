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


def test_version():
    assert runner.invoke(app, ["--version"]).output.strip() == __version__


@pytest.mark.parametrize("arguments", [["doctor", "--fast"], ["cure"]])
def test_unknown_options_are_errors(arguments):
    assert runner.invoke(app, arguments).exit_code == 2

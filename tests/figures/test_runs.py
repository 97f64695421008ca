"""Suites that `gossamer figures --run` measures: their files, failures, what is left for later."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.end_to_end import memory
from benchmarks.records import Benchmarks
from benchmarks.runs import command
from benchmarks.runs.plan import known, load
from benchmarks.suites import masked_sweep
from gossamer.bench import read_records
from gossamer.cli.main import app
from tests.models.tiny import tiny_directory

HEAD = 'about = "x"\ndevice = "any"\nseed = 3\n'
FINE = '[[step]]\nname = "{}"\nmodule = "this"\nminutes = {{ cpu = 0.1 }}\n'
FAILS = '[[step]]\nname = "bad"\nmodule = "json.tool"\nminutes = { cpu = 0.1 }\n'


def plan(folder, text):
    path = folder / "mine.toml"
    path.write_text(HEAD + text)
    return str(path)


def told(folder, name, **more):
    lines = []
    log = command.Run(load(name), "cpu", folder)
    log.all(more.get("minutes"), lines.append)
    return lines


@pytest.mark.parametrize("name", ["full", "latency", "memory", "quick"])
def test_suites_are_whole(name):
    assert name in known()
    found = load(name)
    for step in found.steps:
        args = step.command("cuda", found.seed, Path("out/results"))
        assert args[:2] == ["-m", step.module]
        assert args[-2:] == ["--results", "out/results"] or "--output" in args
        assert not any("{" in text for text in args)
        assert found.device != "any" or step.minutes["cpu"] <= 2
        assert step.minutes["cuda"] < 10


def test_failures_are_rows_and_keep_no_step_back(tmp_path):
    name = plan(tmp_path, FAILS + FINE.format("fine"))
    lines = told(tmp_path, name)
    assert lines[0].startswith("suite mine on ")
    assert "about 12 s" in lines[0]
    assert lines[1].startswith("[1/2] bad: failed")
    assert "json.tool: error: " in lines[2]
    assert lines[3].startswith("[2/2] fine: ok")
    rows = [json.loads(line) for line in (tmp_path / command.LOG).read_text().splitlines()]
    assert [row["status"] for row in rows] == ["failed", "ok"]
    again = told(tmp_path, name)  # what failed is tried again, what was done is not
    assert "1 of 2 done before" in again[0]
    assert again[1].startswith("[2/2] bad: failed")
    assert len(again) == 3


def test_what_ran_out_of_time_goes_on(tmp_path):
    """A step that says so is not done."""
    module = tmp_path / "late_step.py"
    module.write_text("print('out of time at a point')\n")
    step = FINE.format("late").replace("this", "late_step")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.setenv("PYTHONPATH", str(tmp_path))
        name = plan(tmp_path, step)
        for _ in range(2):
            assert told(tmp_path, name)[1].startswith("[1/1] late: stopped")


def test_parts(tmp_path):
    """Steps that do not fit into the minutes are for the next time."""
    name = plan(tmp_path, FINE.format("one") + FINE.format("two"))
    lines = told(tmp_path, name, minutes=0.05)
    assert lines[-1] == "stopped before two, 1 steps are left: run again"
    assert told(tmp_path, name)[-1].startswith("[2/2] two: ok")
    assert len(told(tmp_path, name)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a suite: 'step'"),
        ("nonsense", "is not a suite"),
        (FINE.format("a") + FINE.format("a"), "steps are .* must have names of their own"),
        (FINE.format("a").replace("this", "no.such"), "there is no module 'no.such'"),
        (FINE.format("a") + "shapes = 1\n", "is not a suite"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load(plan(tmp_path, text))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "huge"], "there is no suite 'huge'; must be full, latency, memory, quick, or a"),
        (["--run", "quick", "--minutes", "0"], "minutes is 0; must be more than 0"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    result = CliRunner().invoke(app, ["figures", *arguments, "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_absent(tmp_path):
    result = CliRunner().invoke(app, ["figures", "--run", "full", "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert "suite full needs cuda; this machine has cpu" in result.stderr


def test_a_run_is_drawn(tmp_path):
    """One op by the suite's own command, then its figure."""
    pytest.importorskip("matplotlib")
    text = (
        '[[step]]\nname = "op"\nmodule = "benchmarks.suites.all"\nminutes = { cpu = 0.1 }\n'
        '[step.options]\nquick = true\ndevice = "{device}"\nonly = ["fused_residual_layernorm"]\n'
    )
    name = plan(tmp_path, text)
    arguments = ["figures", "stof-fig03", "--run", name, "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = Benchmarks.of(tmp_path / "out/mine")
    assert len(found.records("fused_residual_layernorm")) >= 4
    assert "residual + LayerNorm: ours" in (tmp_path / "out/stof-fig03.csv").read_text()


def test_peak_memory(tmp_path):
    """Of the process on a CPU: the peak has the weights in it."""
    tiny_directory("llama", tmp_path / "model", head_dim=32)
    memory.main(tmp_path / "model", ["dense"], [2], [64], [8], "cpu", "float32", tmp_path)
    (record,) = read_records(next(tmp_path.rglob("engine_memory.jsonl")))
    assert record.shape == [2, 64, 8]
    facts = record.facts
    assert facts["peak_bytes"] > facts["weight_bytes"] > 0
    assert facts["peak_bytes_without_weights"] == pytest.approx(
        facts["peak_bytes"] - facts["weight_bytes"], rel=1e-3
    )
    assert facts["kv_bytes"] > 0


def test_masks_are_swept(tmp_path):
    """Over masks and lengths, against SDPA with the same mask."""
    masked_sweep.main(["causal", "stof-bigbird"], [64], [1], "cpu", "float32", 0, True, tmp_path)
    records = read_records(next(tmp_path.rglob("masked_attention.jsonl")))
    variants = {(r.variant, r.backend) for r in records}
    assert ("mask=stof-bigbird", "sdpa_mask") in variants
    assert ("mask=causal", "cpu") in variants
    assert all(r.relative_error < 1e-5 for r in records)

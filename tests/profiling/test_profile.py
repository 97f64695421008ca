"""`gossamer.profile()` and `gossamer profile`: files that open, figures that are right."""

import json
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType
from typer.testing import CliRunner

import gossamer
from gossamer.cli.main import app
from gossamer.profiling import Recorder, kernel_times, kernels_table
from gossamer.profiling.command import PythonCommand, parse, run

runner = CliRunner()
X, BIAS = torch.randn(64, 256), torch.randn(256)


def trace_events(path):
    """The events of a Chrome trace: complete ones have a name, a start and a duration."""
    events = json.loads(path.read_text())["traceEvents"]
    assert all("ph" in e and "name" in e for e in events)
    complete = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] > 0 and e["dur"] >= 0 for e in complete)
    return complete


def test_writes_a_trace_and_a_report(tmp_path, capsys):
    with gossamer.profile(tmp_path / "new" / "folder") as p:
        for _ in range(3):
            gossamer.ops.fused_add_gelu(X, BIAS)
    assert sum(e["name"] == "gossamer::fused_add_gelu" for e in trace_events(p.trace)) == 3
    assert p.trace == tmp_path / "new" / "folder" / "profile_trace.json"
    report = (tmp_path / "new" / "folder" / "profile_report.txt").read_text()
    assert "gossamer::fused_add_gelu" in report
    assert "CPU Mem" in report
    found = {k.name: k.calls for k in p.kernels}
    assert found["gossamer::fused_add_gelu"] == 3
    assert sum(k.share for k in p.kernels) == pytest.approx(1)
    assert "gossamer::fused_add_gelu" in capsys.readouterr().out


def test_is_quiet_if_asked(tmp_path, capsys):
    with gossamer.profile(tmp_path, show=False):
        X + 1
    assert capsys.readouterr().out == ""


def test_is_written_after_an_error(tmp_path):
    profile = gossamer.profile(tmp_path, show=False)

    def failing():
        with profile:
            X.exp()
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert any(e["name"] == "aten::exp" for e in trace_events(profile.trace))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; must be a folder"):
        gossamer.profile(tmp_path / "file").__enter__()


def test_a_recorder_runs_once_at_a_time():
    recorder = Recorder()
    with pytest.raises(RuntimeError, match="not running; must be started"):
        recorder.stop()
    recorder.start()
    with pytest.raises(RuntimeError, match="is running; must be stopped"):
        recorder.start()
    X.exp()
    assert "aten::exp" in {k.name for k in recorder.stop().kernels}


@pytest.mark.parametrize("all_threads", [False, True])
def test_other_threads_if_asked(tmp_path, all_threads):
    with gossamer.profile(tmp_path, show=False, all_threads=all_threads) as p:
        thread = threading.Thread(target=X.exp)
        thread.start()
        thread.join()
        X + 1
    assert any(e["name"] == "aten::exp" for e in trace_events(p.trace)) == all_threads


def event(key, count, cpu, device, kind=DeviceType.CPU):
    return SimpleNamespace(
        key=key,
        count=count,
        self_cpu_time_total=cpu,
        self_device_time_total=device,
        device_type=kind,
        is_user_annotation=key.startswith("##"),
    )


def test_kernels_of_the_gpu_come_before_ops_of_the_cpu():
    """An op on the CPU also carries the time of the kernels it launched."""
    averages = [
        event("aten::mul", 4, 500, 3000),
        event("slow_kernel", 2, 0, 3000, DeviceType.CUDA),
        event("fast_kernel", 2, 0, 1000, DeviceType.CUDA),
        event("Activity Buffer Request", 1, 0, 9000, DeviceType.CUDA),
        event("## a range ##", 1, 0, 4000, DeviceType.CUDA),
        event("[memory]", 9, 0, 0),
    ]
    found = kernel_times(averages)
    assert [(k.name, k.calls, k.total_ms, k.share) for k in found] == [
        ("slow_kernel", 2, 3.0, 0.75),
        ("fast_kernel", 2, 1.0, 0.25),
    ]
    assert [k.name for k in kernel_times([averages[0], averages[-1]])] == ["aten::mul"]
    assert kernel_times([]) == []


def test_the_table_sums_up_the_rest():
    kernels = kernel_times([event(f"op{i}", 1, 1000, 0) for i in range(20)])
    table = kernels_table(kernels, rows=15)
    assert list(table.columns[0].cells)[-1] == "5 others"
    assert list(table.columns[3].cells)[-1] == "25.0%"


COMMANDS = [
    (["python", "-m", "json.tool", "x"], PythonCommand("module", "json.tool", ("x",))),
    (["/usr/bin/python3.12", "-c", "print(1)"], PythonCommand("code", "print(1)")),
    (["gossamer", "doctor"], PythonCommand("module", "gossamer.cli.main", ("doctor",))),
    ([__file__, "-v"], PythonCommand("script", __file__, ("-v",))),
    (["python3", __file__, "-v"], PythonCommand("script", __file__, ("-v",))),
]


@pytest.mark.parametrize(("words", "wanted"), COMMANDS)
def test_python_commands(words, wanted):
    assert parse(words) == wanted


def test_an_installed_python_program(tmp_path, monkeypatch):
    for name, line in (("ours", "#!/usr/bin/env python3\n"), ("theirs", "#!/bin/sh\n")):
        (tmp_path / name).write_text(line)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parse(["ours", "x"]) == PythonCommand("script", str(tmp_path / "ours"), ("x",))
    with pytest.raises(ValueError, match=r"theirs is not a Python program; NVIDIA's nsys \(not"):
        parse(["theirs"])
    (tmp_path / "theirs").rename(tmp_path / "nsys")
    with pytest.raises(ValueError, match="not a Python program; `nsys profile COMMAND` takes any"):
        parse(["nsys"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to profile; give a command after --"),
        (["no-such-program"], "no-such-program is not a program here; must be a Python program"),
        (["nothing.py"], "nothing.py is not a file; must be a Python script"),
        (["python"], "python without a program; must have a script"),
        (["python", "-m"], "python -m needs what to run after it"),
        (["python", "-O", "x.py"], "python -O: options of python must be -m or -c here"),
    ],
)
def test_what_is_no_python_command(words, message):
    result = runner.invoke(app, ["profile", "--", *words])
    assert result.exit_code == 2
    assert message in result.output


def test_modules_scripts_and_code_run_as_main(tmp_path, monkeypatch, capsys):
    """As the interpreter runs them; nothing is left of their arguments and paths."""
    text = "import sys\nprint(__name__, sys.argv[1:])\n"
    (tmp_path / "a_module.py").write_text(text)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("sys.argv", ["x"])
    script = str(tmp_path / "a_module.py")
    for kind, target in (("module", "a_module"), ("script", script), ("code", text)):
        run(PythonCommand(kind, target, ("1", kind)))
        assert capsys.readouterr().out == f"__main__ ['1', '{kind}']\n"
    with pytest.raises(SystemExit, match="3"):
        run(PythonCommand("code", "import sys; sys.exit(3)"))


PROGRAM = """
import sys
import torch
import helper
import gossamer
print("argv", sys.argv[1:], __name__, helper.word)
gossamer.ops.silu_mul(torch.randn(8, 64))
sys.exit(7)
"""


def test_a_program_and_its_exit_code(tmp_path, capfd):
    """In a process of its own, with its own output, folder and arguments."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("word = 'beside'\n")
    command = ["profile", "-o", str(tmp_path / "out"), str(tmp_path / "program.py")]
    assert runner.invoke(app, [*command, "--flag", "-o", "x"]).exit_code == 7
    printed = capfd.readouterr()
    assert printed.out.endswith("argv ['--flag', '-o', 'x'] __main__ beside\n")
    assert "gossamer::silu_mul" in printed.err
    events = trace_events(tmp_path / "out" / "profile_trace.json")
    assert any(e["name"] == "gossamer::silu_mul" for e in events)
    assert "gossamer::silu_mul" in (tmp_path / "out" / "profile_report.txt").read_text()


@pytest.mark.gpu
def test_kernels_on_the_gpu(tmp_path):
    x = torch.randn(1 << 20, device="cuda")
    gossamer.ops.silu_mul(x)
    with gossamer.profile(tmp_path, show=False) as p:
        gossamer.ops.silu_mul(x)
    assert p.kernels[0].on_device
    assert "gossamer" in p.kernels[0].name

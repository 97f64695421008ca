"""`gossamer batch` from the command line."""

import builtins
import json

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app

pytest.importorskip("fastapi", reason="pip install 'gossamer[serve]'")
pytest.importorskip("httpx", reason="pip install 'gossamer[serve]'")

SMALL = ("--device", "cpu", "--kv-memory", "64MB")
TWO = ("--tensor-parallel-size", "2", "--launcher")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "w9"}], "max_tokens": 3}


@pytest.fixture
def source(tmp_path):
    url = {"method": "POST", "url": "/v1/chat/completions"}
    lines = [{"custom_id": f"c{i}", **url, "body": BODY} for i in range(3)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0]]))
    return path


def batch(*arguments):
    return CliRunner().invoke(app, ["batch", *map(str, arguments)])


def test_a_job_and_what_it_says(words, source, tmp_path):
    target = tmp_path / "out.jsonl"
    name = ("--served-model-name", "tiny")
    done = batch(words, source, target, *name, *SMALL)
    assert done.exit_code == 0, done.output
    assert f"4 lines: 3 answered, 1 errors; written to {target}" in done.stdout
    content = target.read_text()
    assert len(content.splitlines()) == 4
    target.write_text(content[:-2])
    again = batch(words, source, target, *name, *SMALL)
    assert "3 of 4 lines have results already" in again.stderr
    assert "4 lines: 3 answered" in again.stdout
    other = batch(words, source, target, *name, *SMALL, "--kv", "sparse:k=8,v=8")
    assert other.exit_code == 2
    assert other.stderr.startswith("error: ")
    assert "has results of another model, cache" in other.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--replicas", "2"), "--replicas is for --ray"),
        (("--ray", "--replicas", "0"), "--replicas is 0; must be at least 1"),
        (("--max-in-flight", "0"), "--max-in-flight is 0; must be at least 1"),
        (("--max-body", "much"), "--max-body is 'much'"),
        (("--max-body", "1B"), "body is 1; must be at least 1024"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
        (("--served-model-name", "a\nb"), "printable"),
        (("--kv", "auto"), "--kv is auto, whose cache depends on measured speed; name the cache"),
        (("--kv", "auto:x"), "auto:x"),
        ((*TWO, "torchrun"), "--launcher is torchrun; must be spawn or ray for a batch"),
        ((*TWO, "ray", "--ray"), "--launcher is ray; must be spawn for a batch with --ray"),
        (("--kv", "thin"), "thin"),
        (("--calibration", "missing.safetensors"), "missing.safetensors"),
    ],
)
def test_bad_options(words, source, tmp_path, options, reason):
    target = tmp_path / "out.jsonl"
    found = batch(words, source, target, *SMALL, *options)
    assert found.exit_code == 2
    assert found.stderr.startswith("error: ")
    assert reason in found.stderr
    assert not target.exists()


def test_under_torchrun(words, source, tmp_path, monkeypatch):
    """Which is then the launcher unless another one is named."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    target = tmp_path / "out.jsonl"
    found = batch(words, source, target, *SMALL, *TWO[:2])
    assert found.exit_code == 2
    assert "--launcher is torchrun; must be spawn or ray" in found.stderr
    assert not target.exists()


def test_files_that_cannot_be_used(words, source, tmp_path):
    target = tmp_path / "out.jsonl"
    for arguments, reason in (
        ((words, tmp_path / "no.jsonl", target), "no.jsonl"),
        ((words, tmp_path, target), "directory"),
        ((tmp_path / "no model", source, target), "no model"),
        ((words, source, tmp_path / "no" / "out.jsonl"), "out.jsonl"),
        ((words, source, tmp_path), "directory"),
        ((words, source, source), "is not a result of `gossamer batch`"),
    ):
        before = source.read_bytes()
        found = batch(*arguments, *SMALL)
        assert found.exit_code == 2
        assert found.stderr.startswith("error: ")
        assert reason in found.stderr
        assert source.read_bytes() == before
    assert not target.exists()


def test_without_ray(words, source, tmp_path, monkeypatch):
    find = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] in ("ray", "pyarrow"):
            raise ImportError(f"No module named {name!r}", name=name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(__import__("sys").modules, "gossamer.batch.on_ray", raising=False)
    found = batch(words, source, tmp_path / "out.jsonl", *SMALL, "--ray")
    assert found.exit_code == 2
    assert "pip install 'gossamer[ray]'" in found.stderr

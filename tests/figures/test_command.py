"""`gossamer figures`: what it writes, and what it says of records that are missing or wrong."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from benchmarks.figures.catalog import FIGURES
from benchmarks.records import FOLDER, Benchmarks
from gossamer.cli.main import app
from gossamer.kit import checkout

pytest.importorskip("matplotlib")


def invoke(*arguments):
    return CliRunner().invoke(app, ["figures", *map(str, arguments)])


@pytest.fixture
def records(tmp_path):
    """A few of the committed ones."""
    folder = tmp_path / "records"
    path = "results/nvidia-h200/decode_attention.jsonl"
    (folder / path).parent.mkdir(parents=True)
    shutil.copy(FOLDER / path, folder / path)
    return folder


def test_a_figure_and_its_values(tmp_path):
    result = invoke("--from-records", "decode_speedup", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "decode_speedup.svg",
        "decode_speedup.csv",
    }
    assert "1 of 1 figures of nvidia-h200" in result.output
    again = tmp_path / "again"
    invoke("decode_speedup", "-o", again)
    assert (again / "decode_speedup.svg").read_bytes() == (
        tmp_path / "decode_speedup.svg"
    ).read_bytes()


def test_missing_records_keep_no_other_figure_back(records, tmp_path):
    names = ["mustafar-memory", "quality-memory", "stof-fig03"]
    result = invoke(*names, "--records", records, "-o", tmp_path / "out", "--format", "png")
    assert result.exit_code == 0, result.output
    assert "2 of 3 figures" in result.output
    assert "smollm2-135m.jsonl is missing; it is made by `python -m benchmarks." in result.stderr
    assert (tmp_path / "out/mustafar-memory.png").is_file()


def test_malformed_records_are_named(records, tmp_path):
    path = records / "results/nvidia-h200/decode_attention.jsonl"
    path.write_text(path.read_text() + "{not json\n")
    (records / "quality").mkdir()
    shutil.copy(FOLDER / "quality/smollm2-135m.jsonl", records / "quality")
    names = ["decode_speedup", "quality-memory"]
    result = invoke(*names, "--records", records, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert f"decode_speedup: not drawn: ValueError: {path}:136 is not JSON" in result.stderr
    assert (tmp_path / "out/quality-memory.svg").is_file()


def test_devices_are_not_mixed(records):
    path = records / "results/nvidia-h200/decode_attention.jsonl"
    line = json.loads(path.read_text().splitlines()[0]) | {"device": "NVIDIA A100"}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="mixes devices: NVIDIA A100, NVIDIA H200; must be of one"):
        Benchmarks.of(records).records("decode_attention")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no figure 'nothing'; must be one of token-cache"),
        (["--device", "tpu"], "device is 'tpu'; must be one of nvidia-h200"),
        (["--format", "gif"], "format is 'gif'; must be svg, png, pdf"),
        (["--minutes", "9"], "--minutes needs --run"),
        (["--from-records", "--run", "quick"], "--from-records excludes --run"),
        (["--records", "/nowhere"], "/nowhere has no results/<device> folders with records"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    result = invoke(*arguments, "-o", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr


def test_outside_a_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(checkout.gossamer, "__file__", str(tmp_path / "site/gossamer/__init__.py"))
    result = invoke("-o", tmp_path)
    assert result.exit_code == 2
    assert "is not a checkout of Gossamer" in result.stderr


def test_names_are_unique():
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names)

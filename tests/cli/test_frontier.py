"""`gossamer frontier`: the whole way with a tiny model, its file in `--kv`, and mistakes."""

import importlib
import json
from random import Random

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app
from gossamer.cli.options import spec_of
from gossamer.kv import KVConfig
from tests.cli.models import tiny_with_words

SMALL = ("--tokens", 512, "--context", 256, "--probes", 1, "--pairs", 2, "--kv-memory", "16MB")


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    path = tmp_path_factory.mktemp("frontier") / "words"
    return tiny_with_words(path, max_position_embeddings=1024)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    random, path = Random(0), tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(f"w{random.randrange(90)}" for _ in range(600)))
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_from_a_budget_to_a_cache(roomy, text, tmp_path):
    pytest.importorskip("matplotlib")
    results, best, folder = (tmp_path / name for name in ("results.jsonl", "best.json", "figures"))
    arguments = ("frontier", roomy, "--budget", "40%", "--text", text, "--results", results, *SMALL)
    result = invoke(*arguments, "--plot", folder, "-o", best)
    assert result.exit_code == 0, result.output
    for words in ("40%", "dense", "uniform pruning", "frontier", "recommended", "100.0%"):
        assert words in result.stdout
    assert "gossamer calibrate" in result.stderr  # how to get more
    assert (folder / "frontier.svg").exists()
    found = json.loads(best.read_text())
    assert f"Use --kv {found['kv']}: " in result.stdout
    assert found["share"] <= 0.4
    KVConfig.parse(found["kv"])

    lines = results.read_text()
    again = invoke(*arguments, "--markdown")
    assert again.exit_code == 0, again.output
    assert f"| `{found['kv']}` |" in again.stdout
    assert results.read_text() == lines

    used = invoke("generate", roomy, "w1 w2", "--raw", "--kv", best, "--max-tokens", 2, "--json")
    assert used.exit_code == 0, used.output
    assert json.loads(used.stdout)["runs"][0]["kv"] == found["kv"]
    assert "warning" not in used.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "120%"), "budget is '120%'; must be above 0% and below 100%"),
        (("--budget", "0"), "budget is '0'; must be above 0%"),
        (("--budget=-3",), "budget is '-3'; must be above 0%"),
        (("--budget", "abc"), "or bytes per token from 1 to 767"),
        (("--budget", "14%"), "budget is 14%; must be at least 14.7"),
        (("--length", 16), "length is 16; must be at least 32"),
        (("--context", 128), "context is 128; must be at least 256"),
        (("--context", 1024, "--tokens", 1024), "must be less than 1024, what the model has"),
        (("--tokens", 1024), "2 windows of 256 tokens and --tokens is 1024; must be at most 512"),
        (("--text", "nowhere.txt"), "nowhere.txt: there is no such file"),
        (("--calibration", "nowhere"), "nowhere: there is no such calibration; `gossamer calib"),
        (("--minutes", 0), "minutes is 0.0; must be above 0"),
        (("--pairs", 0), "pairs is 0; must be"),
        (("-o", "nowhere/best.json"), "nowhere/best.json: cannot be written"),
    ],
)
def test_mistakes_in_one_line(roomy, text, arguments, words):
    result = invoke("frontier", roomy, "--budget", "40%", "--text", text, *SMALL, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_more_mistakes(roomy, text, tmp_path, monkeypatch):
    unknown = invoke("frontier", "no-such-model", "--budget", "25%")
    assert unknown.exit_code == 2
    assert unknown.stderr.startswith("error: no-such-model")
    other = invoke("frontier", roomy, "--budget", "40%", "--text", text, *SMALL, "--results", text)
    assert other.exit_code == 2
    assert "name another file" in other.stderr

    found = importlib.import_module

    def missing(name, *rest):
        if name == "matplotlib":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    plot = ("--plot", tmp_path / "figures")
    undrawn = invoke("frontier", roomy, "--budget", "40%", "--text", text, *SMALL, *plot)
    assert undrawn.exit_code == 2
    assert "gossamer[plots]" in undrawn.stderr


# ---- --kv FILE.json ---------------------------------------------------------------------------


def test_specs_of_files(tmp_path, capsys):
    assert spec_of("sparse:k=8,v=8") == "sparse:k=8,v=8"
    path = tmp_path / "best.json"
    path.write_text(json.dumps({"kv": "dense:int8", "model": "/a/tiny"}))
    assert spec_of(str(path)) == spec_of(str(path), "/b/tiny") == "dense:int8"
    assert capsys.readouterr().err == ""
    assert spec_of(str(path), "smollm2") == "dense:int8"
    assert capsys.readouterr().err == f"warning: {path} was made for /a/tiny, not for smollm2\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", 'must be an object with a KV spec as its "kv"'),
        ('{"kv": 3}', 'must be an object with a KV spec as its "kv"'),
        ('{"kv": "dense:int9"}', "KV spec 'dense:int9'"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "chat", "eval"])
def test_wrong_files(roomy, tmp_path, content, words, command):
    path = tmp_path / "best.json"
    if content is not None:
        path.write_text(content)
    result = invoke(command, "--kv", path, roomy)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert str(path) in result.stderr
    assert words in result.stderr


def test_a_file_of_another_model(roomy, tmp_path):
    path = tmp_path / "best.json"
    path.write_text(json.dumps({"kv": "dense:int8", "model": "smollm2"}))
    result = invoke(
        "generate", "--kv", path, "--kv", "dense", roomy, "w1", "--raw", "--max-tokens", 1
    )
    assert result.exit_code == 0, result.output
    assert f"warning: {path} was made for smollm2, not for {roomy}" in result.stderr
    assert "dense:int8" in result.stdout

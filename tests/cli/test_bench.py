"""`gossamer bench` and benchmarks.end_to_end.engine: small runs, and what they write."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks.end_to_end import engine as benchmark
from benchmarks.end_to_end.engine import CASES, QUICK
from gossamer.bench import read_records
from gossamer.cli.main import app
from gossamer.workloads.bench import BenchConfig
from gossamer.workloads.requests import RequestMix
from tests.models.tiny import VOCAB

SPARSE = "sparse:k=16,v=16"
CACHES = ("--kv", "dense", "--kv", SPARSE)


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def records_of(folder, op):
    (path,) = folder.glob(f"*/{op}.jsonl")
    return read_records(path)


def test_throughput_of_drawn_lengths(words, tmp_path):
    arguments = ("--requests", 5, "--input", "10,40", "--output", "5,40", "--results", tmp_path)
    result = invoke("throughput", words, *CACHES, *arguments)
    assert result.exit_code == 0, result.output
    dense, sparse = records_of(tmp_path, "engine_throughput")
    assert dense.shape[0] == sparse.shape[0] == 5
    assert SPARSE in sparse.variant
    assert dense.facts["output_tokens"] == sparse.facts["output_tokens"]
    assert dense.facts["total_tokens_per_second"] > dense.facts["tokens_per_second"] > 0
    assert dense.facts["kv_bytes"] == dense.facts["kv_bytes_dense"]


def test_throughput_of_a_named_workload(words, tmp_path):
    """Greedy, with a prefix cache for prompts that share prefixes, and as many tokens as drawn."""
    numbers = {"requests": 30, "inputs": (5, 30), "outputs": (3, 9), "prefix": 320, "prefixes": 2}
    options = ("--requests", 30, "--input", "5,30", "--output", "3,9", "--prefix", 320)
    result = invoke(
        "throughput", words, "--workload", "chat", *options, "--prefixes", 2, "--results", tmp_path
    )
    assert result.exit_code == 0, result.output
    (record,) = records_of(tmp_path, "engine_throughput")
    assert record.variant.endswith("chat: prefix 320 x 2 input 5,30 output 3,9 seed 0")
    drawn = RequestMix(**numbers).draw(VOCAB, seed=0)
    assert record.shape == [30, max(len(request.ids) for request in drawn)]
    assert record.facts["output_tokens"] == sum(request.output for request in drawn)
    prompts = sum(len(request.ids) for request in drawn)
    assert record.facts["prompt_tokens"] == prompts
    # The first step has 8,192 tokens, of which the cache knows none: warming up was with others.
    assert 0 < record.facts["cached_tokens"] <= (30 - 8192 // 350) * 320


def test_throughput_at_equal_memory(words, tmp_path):
    arguments = ("--context", 384, "--output", 64, "--fill", "--kv-memory", "6MB")
    result = invoke("throughput", words, *CACHES, *arguments, "--results", tmp_path)
    assert result.exit_code == 0, result.output
    dense, sparse = records_of(tmp_path, "engine_throughput")
    assert 1 < dense.shape[0] < sparse.shape[0]
    for record in (dense, sparse):
        assert record.facts["preemptions"] == 0
        assert record.facts["output_tokens"] == 64 * record.shape[0]
        assert record.facts["kv_bytes"] <= 6e6


def test_latency_and_what_stays_in_the_file(words, tmp_path):
    common = ("--context", "33,100", "--output", 8, "--results", tmp_path)
    result = invoke("latency", words, *CACHES, "--batch", "1,3", *common)
    assert result.exit_code == 0, result.output
    first = records_of(tmp_path, "engine_decode")
    points = [(*record.shape, SPARSE in record.variant) for record in first]
    assert points == [(b, c, kv) for kv in (False, True) for b in (1, 3) for c in (33, 100)]
    for record in first:
        assert record.low_ms <= record.median_ms <= record.high_ms
        assert record.ceiling_share > 0
        assert record.bytes == record.facts["weight_bytes"] + record.facts["kv_bytes_read"]
    assert len(records_of(tmp_path, "engine_first_token")) == 8
    invoke("latency", words, "--batch", 1, *common)
    again = records_of(tmp_path, "engine_decode")
    assert [r.point for r in again] == [r.point for r in first]
    assert again[2:] == first[2:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("throughput", "{tmp}/nowhere"), "there is no such model directory"),
        (("throughput", "{words}", "--requests", 0), "--requests is 0; must be at least 1"),
        (("throughput", "{words}", "--input", "9,3"), "--input is '9,3'; must be MIN,MAX"),
        (("throughput", "{words}", "--output", "x"), "--output is 'x'; must be positive integers"),
        (("throughput", "{words}", "--fill"), "--fill needs --context"),
        (
            ("throughput", "{words}", "--workload", "huge"),
            "workload is 'huge'; must be one of mixed, small, chat, long",
        ),
        (
            ("throughput", "{words}", "--workload", "long", "--context", 64),
            "--context excludes --workload and --prefix",
        ),
        (("throughput", "{words}", "--prefix", -1), "prefix is -1; must be at least 0"),
        (("throughput", "{words}", "--context", 64), "--context needs --kv-memory or --requests"),
        (
            ("throughput", "{words}", "--context", 64, "--output", 8, "--kv-memory", "1KB"),
            "kv_memory is 1000 bytes; must be at least",
        ),
        (("throughput", "{words}"), "max_model_len is 2048; must be 2 to 512"),
        (("latency", "{words}", "--batch", "1,a"), "--batch is '1,a'; must be positive integers"),
        (("latency", "{words}", "--context", 0), "--context is '0'; must be positive integers"),
        (("latency", "{words}", "--output", 1), "--output is 1; must be at least 2"),
        (("latency", "{words}", "--context", 8, "--kv", "spares"), "KV spec 'spares'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, tmp_path, arguments, message):
    result = invoke(*(str(a).format(tmp=tmp_path, words=words) for a in arguments))
    assert result.exit_code == 2
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert message in line
    assert "Traceback" not in result.output


@pytest.mark.parametrize("random_weights", [False, True])
def test_the_engine_and_transformers_agree(words, random_weights):
    """benchmarks.end_to_end.engine raises if a greedy token differs."""
    plan = replace(CASES["cpu"], **QUICK, model=str(words), random_weights=random_weights)
    config = BenchConfig(plan.model, ["dense"], "float32", "cpu", random_weights=random_weights)
    records = benchmark.against_transformers(plan, config)
    assert [r.backend for r in records] == ["gossamer", "transformers"] * 2
    assert all(r.facts["equal_tokens"] == 1 for r in records[1::2])
    assert all("transformers" in r.versions for r in records[1::2])
    assert records[0].point == records[1].point


def test_tokens_that_differ_are_an_error():
    assert benchmark._equal_share([[1, 2, 3, 4]], [[1, 9, 3, 4]], strict=False) == 0.25
    with pytest.raises(benchmark.WrongResultError, match=r"25\.0%"):
        benchmark._equal_share([[1, 2, 3, 4]], [[1, 9, 3, 4]], strict=True)


@pytest.mark.parametrize("part", ["context", "memory"])
def test_other_parts_of_the_benchmark(words, part):
    plan = replace(CASES["cpu"], **QUICK, model=str(words))
    config = BenchConfig(plan.model, ["dense", SPARSE], "float32", "cpu")
    assert len(benchmark.PARTS[part](plan, config)) == {"context": 4, "memory": 2}[part]

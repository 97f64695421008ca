"""`gossamer plan`: tables, JSON, and one line for bad input."""

import json

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app
from tests.planning.given import MODELS

LLAMA = ("--model", str(MODELS / "llama-3-8b"))


def invoke(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_table():
    result = invoke(*LLAMA, "--rate", 50, "--context", "32k", "--gpu", "h200")
    assert result.exit_code == 0, result.output
    for text in ("dense:int8", "coded:23.5%", "4.29 GB", "KV memory"):
        assert text in result.output
    assert "50 requests/s of 32,512 tokens in (0% of them cached) and 256 out" in result.output
    assert "NVIDIA H200: measured kernels, the engine at" in result.output


def test_json():
    result = invoke(
        *(*LLAMA, "--rate", 5, "--context", 8000, "--output", 500, "--json"),
        *("--kv", "dense", "--slo", "tpot:50,ttft:2000", "--tensor-parallel-size", 2),
    )
    found = json.loads(result.stdout)
    (cache,) = found["caches"]
    assert cache["kv"] == "dense"
    assert cache["gpus"] == 2 * cache["replicas"]
    assert cache["tpot_ms"] <= 50
    assert cache["ttft_ms"] <= 2000
    assert found["traffic"] == {"prompt": 7500, "output": 500, "prefix_hit": 0.0}
    assert sum(cache["shares_of_time"].values()) == pytest.approx(1)


def test_markdown():
    result = invoke(*LLAMA, "--rate", 5, "--kv", "dense", "--markdown")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("| cache | GPUs |")
    assert lines[2].startswith("| `dense` | ")
    assert lines[4].startswith("- 5 requests/s")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--context", "3x"), "--context is '3x'; must be tokens above 0, like 8000, 32k or 1m"),
        (("--context", "1m"), "context is 1,048,576 tokens; must be at most 131,072"),
        (("--output", "32k"), "--output is 32768; must be below --context, 32768"),
        (("--gpu", "b200"), "gpu is 'b200'; must be h200, or come from a --gpu-file"),
        (("--gpu-file", "nowhere.json"), "nowhere.json"),
        (("--slo", "fast:5"), "--slo has 'fast:5'"),
        (("--slo", "tpot:0.1"), "tpot of a request alone is"),
        (("--dtype", "float32"), "dtype is 'float32'; must be"),
        (("--kv", "auto"), "must be a KV spec"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    result = invoke(*LLAMA, "--rate", 5, *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_model_of_several_gpus():
    result = invoke(
        *("--model", MODELS / "llama-3-70b", "--rate", 5, "--tensor-parallel-size", 1),
    )
    assert result.exit_code == 2
    assert "141.1 GB of weights" in result.stderr
    assert "tensor_parallel_size can be 2 or 4 or 8" in result.stderr

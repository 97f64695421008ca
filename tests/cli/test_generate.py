"""`gossamer generate`: text on stdout, facts on stderr, mistakes in one line."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gossamer.cli.generate import equal_tokens
from gossamer.cli.main import app
from gossamer.engine import LLM, SamplingParams
from tests.models.adapters import save_adapter

SPARSE = "sparse:k=16,v=16"
COMMON = ("--kv-memory", "4MB", "--ignore-eos")


def invoke(*arguments, **more):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], **more)


def json_of(*arguments, **more):
    result = invoke(*arguments, "--json", **more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["runs"]


def test_the_text_of_the_engine_on_stdout(words):
    result = invoke(words, "w1 w2", "--max-tokens", 40, *COMMON)
    assert result.exit_code == 0, result.output
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(words, kv_memory="4MB") as llm:
        answer = llm.chat([{"role": "user", "content": "w1 w2"}], params).outputs[0]
    assert result.stdout == answer.text + "\n"
    for fact in ("prefill", "decode", "tok/s", "KV 0.10 MB"):
        assert fact in result.stderr


def test_chat_is_the_default_where_there_is_a_template(words, plain_words):
    (chat,) = json_of(words, "w1 w2", *COMMON)
    (raw,) = json_of(words, "w1 w2", "--raw", *COMMON)
    (plain,) = json_of(plain_words, "w1 w2", *COMMON)
    prompt_tokens = [run["outputs"][0]["prompt_tokens"] for run in (chat, raw, plain)]
    assert prompt_tokens == [4, 2, 2]  # user: w1 w2 assistant:


def test_an_adapter(words, tmp_path):
    """Of both commands; as the engine applies it."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(words)
    folder = save_adapter(tmp_path / "adapter", model)
    (run,) = json_of(words, "w1 w2", "--max-tokens", 9, "--lora", folder, *COMMON)
    (plain,) = json_of(words, "w1 w2", "--max-tokens", 9, *COMMON)
    with LLM(words, kv_memory="4MB", lora={"a": folder}) as llm:
        params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
        answer = llm.chat([{"role": "user", "content": "w1 w2"}], params, lora="a").outputs[0]
    assert run["outputs"][0]["token_ids"] == answer.token_ids
    assert plain["outputs"][0]["token_ids"] != answer.token_ids
    options = ["chat", str(words), "--temperature", "0", "--max-tokens", "9", "--lora", str(folder)]
    chat = CliRunner().invoke(app, [*options, "--kv-memory", "4MB"], input="w1 w2\n")
    assert chat.exit_code == 0, chat.output
    assert chat.stdout.splitlines()[0] in answer.text
    missing = invoke(words, "x", "--lora", tmp_path / "none")
    assert (missing.exit_code, "has no adapter_config.json" in missing.stderr) == (2, True)


def test_several_caches_side_by_side(words):
    arguments = ("--kv", "dense", "--kv", SPARSE, "--max-tokens", 120)
    result = invoke(words, "w1 w2", *arguments, *COMMON)
    assert result.exit_code == 0, result.output
    for fact in ("dense", SPARSE, "plain float32", "saved", "same tokens", "of 120"):
        assert fact in result.stdout


def test_json_has_everything(words):
    dense, sparse = json_of(
        words, "w1 w2", "w3", "--kv", "dense", "--kv", SPARSE, "--max-tokens", 120, *COMMON
    )
    assert (dense["kv"], dense["dtype"], dense["device"]) == ("dense", "float32", "cpu")
    assert dense["kv_bytes"] == dense["kv_bytes_dense"] == sparse["kv_bytes_dense"] > 0
    assert dense["saved"] == 0
    assert 0.2 < sparse["saved"] == 1 - sparse["kv_bytes"] / sparse["kv_bytes_dense"] < 1
    for run in (dense, sparse):
        assert run["prefill_tokens_per_second"] > 0
        assert run["decode_tokens_per_second"] > 0
        assert [o["prompt"] for o in run["outputs"]] == ["w1 w2", "w3"]
        for output, first in zip(run["outputs"], dense["outputs"], strict=True):
            assert len(output["token_ids"]) == 120
            assert output["finish_reason"] == "length"
            assert output["cached_tokens"] == 0, "the warm-up is in the prefix cache"
            same = equal_tokens(first["token_ids"], output["token_ids"])
            assert output["equal_tokens"] == same
    assert sparse["outputs"][0]["equal_tokens"] >= 60  # nothing is compressed in the first blocks


def test_equal_tokens():
    assert equal_tokens([1, 2, 3], [1, 2, 4]) == 2
    assert equal_tokens([1, 2], [1, 2, 3]) == 2
    assert equal_tokens([], [1]) == 0


def test_several_prompts_have_their_texts(words):
    result = invoke(words, "w1", "w2", "--max-tokens", 5, *COMMON)
    assert result.stdout.count("'w1'\n") == result.stdout.count("'w2'\n") == 1


def test_the_same_seed_the_same_text(words):
    arguments = ("w1", "--temperature", 1, "--top-p", 0.9, "--top-k", 50, *COMMON)
    first, second, other = (
        json_of(words, *arguments, "--seed", seed)[0]["outputs"][0]["text"] for seed in (3, 3, 4)
    )
    assert first == second != other


def test_prompts_from_files_and_stdin(words, tmp_path):
    (tmp_path / "prompt.txt").write_text("w1 w2")
    (direct,) = json_of(words, "w1 w2", *COMMON)
    (file,) = json_of(words, "--prompt-file", tmp_path / "prompt.txt", *COMMON)
    (stdin,) = json_of(words, "--prompt-file", "-", *COMMON, input="w1 w2")
    assert direct["outputs"] == file["outputs"] == stdin["outputs"]


def test_random_weights_need_only_a_config(words, tmp_path):
    (tmp_path / "config.json").write_bytes((words / "config.json").read_bytes())
    result = invoke(tmp_path, "w1", "--random-weights", *COMMON)
    assert result.exit_code == 2
    assert "error: the model has no tokenizer" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{tmp}/nowhere", "w1"), "{tmp}/nowhere: there is no such model directory"),
        (("{model}",), "no prompt; give one as an argument or with --prompt-file"),
        (("{model}", "", "--raw"), "the prompt is empty"),
        (("{model}", "w1 " * 600), "the prompt has 602 tokens; must have 1 to 511"),
        (("{model}", "w1", "--kv", "spares"), "KV spec 'spares'"),
        (("{model}", "w1", "--kv", "dense", "--kv", "sparse:k=1"), "v= is missing"),
        (("{model}", "w1", "--kv", "auto:fast"), "KV preset 'auto:fast'; must be auto, "),
        (("{model}", "w1", "--calibration", "{tmp}/x", "--kv", "sparse:k=8,v=8,basis=pca"), "x"),
        (("{model}", "w1", "--max-tokens", "0"), "max_tokens is 0; must be 1 to"),
        (("{model}", "w1", "--temperature", "-1"), "temperature is -1.0; must be"),
        (("{model}", "w1", "--top-p", "2"), "top_p is 2.0; must be"),
        (("{model}", "w1", "--dtype", "float8"), "dtype is 'float8'; must be one of"),
        (("{model}", "w1", "--device", "abacus"), "device 'abacus' cannot be used"),
        (("{model}", "w1", "--max-model-len", "513"), "max_model_len is 513; must be 2 to 512"),
        (("{model}", "w1", "--kv-memory", "lots"), "kv_memory is 'lots'; must be positive bytes"),
        (("{model}", "w1", "--kv-memory", "999999999GB"), "memory"),
        (("{model}", "w1", "--tensor-parallel-size", "0"), "tensor_parallel_size is 0; must be"),
        (("{model}", "w1", "--tensor-parallel-size", "3"), "must be one of 1, 2"),
        (("{model}", "w1", "--launcher", "mpi"), "launcher is 'mpi'; must be one of auto, spawn"),
        (("{model}", "--prompt-file", "{tmp}/nowhere"), "No such file or directory"),
        (("{model}", "--prompt-file", "{tmp}/latin"), "{tmp}/latin: not UTF-8 text"),
        (("{plain}", "w1", "--chat"), "has no chat template; omit --chat"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, plain_words, tmp_path, arguments, message):
    (tmp_path / "latin").write_bytes("Gänsefüßchen".encode("latin-1"))
    places = {"tmp": tmp_path, "model": words, "plain": plain_words}
    result = invoke(*(argument.format(**places) for argument in arguments))
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert message.format(**places) in line
    assert result.stdout == ""


def test_other_commands_do_not_import_the_engine():
    """torch._dynamo comes with it, which takes longer than everything that `doctor` does."""
    check = "import sys, gossamer.cli.main; sys.exit('gossamer.engine' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0

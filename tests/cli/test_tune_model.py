"""`gossamer tune model` and `gossamer tune list`, on a tiny model in a directory."""

import pytest
import torch
import transformers
from typer.testing import CliRunner

from gossamer.cli.main import app


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.BertConfig(vocab_size=99, num_hidden_layers=1, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return str(folder)


def invoke(*arguments):
    return CliRunner().invoke(app, ["tune", *map(str, arguments)])


def test_a_plan_is_kept_and_listed(model):
    shapes = ("--shape", "2x24", "--shape", "1x16", "--budget", "0.5s")
    result = invoke("model", model, *shapes, "--mask", "sliding", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert f"{model} 2x24: " in result.output
    assert f"{model} 1x16: " in result.output
    assert "compile" in result.output
    listed = invoke("list")
    assert listed.exit_code == 0, listed.output
    assert "int64[2, 24]" in listed.output
    assert "int64[1, 16]" in listed.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "2by3"), "--shape is '2by3'; must be a batch and tokens like 8x512"),
        (("--shape", "0x3"), "--shape is '0x3'"),
        (("--shape", "1x8", "--budget", "soon"), "--budget is 'soon'; must be a time above 0"),
        (("--shape", "1x8", "--mask", "round"), "mask is 'round'; must be one of full, causal"),
        (("--shape", "1x8", "--mode", "fast"), "mode is 'fast'; must be one of default, "),
        (("--shape", "1x8", "--dtype", "int8"), "--dtype is 'int8'; must be float16"),
    ],
)
def test_bad_input(model, arguments, message):
    result = invoke("model", model, *arguments, "--device", "cpu")
    assert result.exit_code == 2
    assert message in result.output


def test_bad_model():
    result = invoke("model", "no-model", "--shape", "1x8", "--device", "cpu")
    assert result.exit_code == 2
    assert "model is 'no-model'; must be a Hugging Face directory or one of bert-base" in (
        result.output
    )

"""`gossamer calibrate`, from a directory on disk to a file on disk."""

import hashlib

import pytest
import torch
from typer.testing import CliRunner

from gossamer.cli.main import app
from gossamer.integrations.transformers import fingerprint, load_model
from gossamer.kv.calibration import Calibration
from gossamer.kv.folding import fold_v_basis
from tests.integrations import tiny_model

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

WORDS = ["<unk>", *(f"word{i}" for i in range(96))]
TEXT = " ".join(f"word{i * i % 96}" for i in range(300))


@pytest.fixture
def model_path(tmp_path):
    """A tiny Llama with a tokenizer of whole words, as `save_pretrained` writes them."""
    path = tmp_path / "tiny-llama"
    tiny_model("llama-bias").save_pretrained(path)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def text_path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def test_from_a_model_to_a_file(model_path, text_path, tmp_path):
    output = tmp_path / "calibration.safetensors"
    arguments = ("--text", text_path, "--tokens", 200, "--context", 64, "-o", output)
    result = invoke(model_path, *arguments)
    assert result.exit_code == 0, result.output
    for fact in ("tiny-llama", "3 layers, 6 query and 2 KV heads of 8", "200"):
        assert fact in result.stdout
    assert result.stdout.count("% of the energy in half of the coordinates") == 2
    assert f"wrote {output}" in result.stdout

    calibration = Calibration.load(output)
    manifest = calibration.manifest
    assert (manifest.model, manifest.tokens) == ("tiny-llama", 200)
    assert manifest.text_sha256 == hashlib.sha256(TEXT.encode()).hexdigest()
    model, tokenizer = load_model(model_path, dtype=torch.bfloat16)
    assert model.dtype is torch.bfloat16
    assert tokenizer("word5 word7")["input_ids"] == [6, 8]
    calibration.check(fingerprint(model))
    fold_v_basis(model, calibration)


def test_the_same_file_twice(model_path, text_path, tmp_path):
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    for output in (first, second):
        invoke(model_path, "--text", text_path, "--tokens", 100, "-o", output)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--tokens": "301"}, "text.txt: has 300 tokens; --tokens is 301"),
        ({"--tokens": "0"}, "--tokens is 0; must be at least 1"),
        ({"--tokens": "7"}, "7 tokens; must be at least 8, the head_dim"),
        ({"--context": "0"}, "--context is 0; must be at least 1"),
        ({"--context": "4097"}, "context is 4097; must be 1 to 4096"),
        ({"--text": "{tmp}/nowhere.txt"}, "No such file or directory: '{tmp}/nowhere.txt'"),
        ({"--text": "{tmp}/latin.txt"}, "{tmp}/latin.txt: not UTF-8 text"),
        ({"--device": "abacus"}, "device 'abacus' cannot be used"),
        ({"-o": "{tmp}/nowhere/x"}, "{tmp}/nowhere is not a directory that can be written to"),
        ({"-o": "{tmp}"}, "{tmp}: is a directory; --output must be a file"),
        ({"model": "{tmp}/nowhere"}, "{tmp}/nowhere: there is no such model directory"),
        ({"model": "{tmp}/text.txt"}, "{tmp}/text.txt: must be a directory or a .gguf file"),
        ({"model": "{tmp}/empty"}, "{tmp}/empty: cannot be loaded"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(model_path, text_path, tmp_path, change, message):
    (tmp_path / "latin.txt").write_bytes("Gänsefüßchen".encode("latin-1"))
    (tmp_path / "empty").mkdir()
    output = tmp_path / "out.safetensors"
    options = {"--text": text_path, "--tokens": "100", "-o": output, "model": model_path}
    options |= {name: value.format(tmp=tmp_path) for name, value in change.items()}
    model = options.pop("model")
    result = invoke(model, *(x for option in options.items() for x in option))
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert message.format(tmp=tmp_path) in line
    assert not output.exists()


def test_weights_that_are_missing_are_named(model_path):
    safetensors = pytest.importorskip("safetensors.torch")
    file = model_path / "model.safetensors"
    weights = safetensors.load_file(file)
    del weights["model.layers.1.self_attn.v_proj.bias"]
    safetensors.save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"missing.*: model\.layers\.1\.self_attn\.v_proj\.bias"):
        load_model(model_path)


@pytest.mark.parametrize("missing", ["--text", "-o"])
def test_text_and_output_are_required(model_path, text_path, tmp_path, missing):
    options = {"--text": text_path, "-o": tmp_path / "x"}
    del options[missing]
    assert invoke(model_path, *(x for option in options.items() for x in option)).exit_code == 2

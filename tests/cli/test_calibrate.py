"""`gossamer calibrate`, from a directory on disk to a file on disk."""

import hashlib
import json

import pytest
import torch
from typer.testing import CliRunner

from gossamer.cli.calibrate import _first_tokens
from gossamer.cli.main import app
from gossamer.integrations.transformers import fingerprint, load_model
from gossamer.kv.calibration import Calibration
from gossamer.kv.folding import fold_v_basis
from tests.integrations import tiny_model

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

WORDS = ["<unk>", *(f"word{i}" for i in range(96))]
TEXT = " ".join(f"word{i * i % 96}" for i in range(300))


def word_tokenizer(known):
    """Whole words between spaces are tokens."""
    vocabulary = {word: i for i, word in enumerate(known)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


@pytest.fixture
def model_path(tmp_path):
    """A tiny Llama with a tokenizer of whole words, as `save_pretrained` writes them."""
    path = tmp_path / "tiny-llama"
    tiny_model("llama-bias").save_pretrained(path)
    word_tokenizer(WORDS).save_pretrained(path)
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
    arguments = ("--text", text_path, "--tokens", 250, "--context", 120, "-o", output)
    result = invoke(model_path, *arguments)
    assert result.exit_code == 0, result.output
    for fact in ("tiny-llama", "3 layers, 6 query and 2 KV heads of 8", "250"):
        assert fact in result.stdout
    assert result.stdout.count("% of the energy in half of the coordinates") == 2
    assert f"wrote {output}" in result.stdout

    calibration = Calibration.load(output)
    manifest = calibration.manifest
    assert (manifest.model, manifest.tokens) == ("tiny-llama", 250)
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


def test_weights_without_a_place_are_named(model_path):
    """Attention biases under a config without them: the model would run, and say other things."""
    path = model_path / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("attention_bias") is True
    path.write_text(json.dumps(config))
    names = (
        r"no place for: model\.layers\.0\.self_attn\.k_proj\.bias, .*2\.self_attn\.v_proj\.bias$"
    )
    with pytest.raises(ValueError, match=names):
        load_model(model_path)


class Recorder:
    """A tokenizer that notes how much text it was given."""

    def __init__(self, tokenizer):
        self.tokenizer, self.lengths = tokenizer, []

    def __call__(self, text):
        self.lengths.append(len(text))
        return self.tokenizer(text)


def test_a_prefix_gives_the_tokens_of_the_whole_text():
    """8 characters per token cut the 100th word in two, which then is an unknown word."""
    tokenizer = Recorder(word_tokenizer(["<unk>", "longer-word", "seven77"]))
    text = " ".join(["longer-word", *["seven77"] * 5000])
    naive = tokenizer(text[:800])["input_ids"]
    whole = tokenizer(text)["input_ids"]
    assert len(naive) == 100
    assert naive != whole[:100]
    tokenizer.lengths.clear()
    assert _first_tokens(tokenizer, text.encode(), None, 100) == whole[:100]
    assert tokenizer.lengths == [800, 1600, 3200]


@pytest.mark.parametrize("wanted", [1, 60, 61, 62, 63, 64, 500])
def test_prefixes_with_merges_over_the_whole_text(wanted):
    """BPE without words, as in Llama 2, and an end token: the cut changes tokens before it."""
    letters = "".join("abcd "[i] for i in torch.randint(0, 5, (40_000,)))
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.train_from_iterator(
        [letters[i : i + 50] for i in range(0, 4000, 50)],
        tokenizers.trainers.BpeTrainer(
            vocab_size=200, special_tokens=["</s>"], show_progress=False
        ),
    )
    bpe.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 0)]
    )
    tokenizer = Recorder(transformers.PreTrainedTokenizerFast(tokenizer_object=bpe))
    whole = tokenizer(letters)["input_ids"]
    naive = [tokenizer(letters[:length])["input_ids"][:-1] for length in range(500, 520)]
    assert any(ids != whole[: len(ids)] for ids in naive)
    tokenizer.lengths.clear()
    assert _first_tokens(tokenizer, letters.encode(), None, wanted) == whole[:wanted]
    assert max(tokenizer.lengths) < len(letters) / 2
    assert _first_tokens(tokenizer, letters.encode(), None, len(whole)) == whole


@pytest.mark.parametrize("missing", ["--text", "-o"])
def test_text_and_output_are_required(model_path, text_path, tmp_path, missing):
    options = {"--text": text_path, "-o": tmp_path / "x"}
    del options[missing]
    assert invoke(model_path, *(x for option in options.items() for x in option)).exit_code == 2

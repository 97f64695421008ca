"""Checkpoints that `gossamer quantize` writes are read as what was quantized."""

import json

import pytest
import torch
from typer.testing import CliRunner

from gossamer.cli.main import app
from gossamer.models import load_decoder, open_model, quantizing
from gossamer.models.layout import tensor_shapes
from gossamer.models.packed import Int4Rows, PackedTensor
from gossamer.models.quantizing import Quantizing, count_matrices, quantize_checkpoint
from gossamer.models.source import WHOLE
from gossamer.ops.quantize_fp8 import quantize_fp8
from gossamer.ops.quantize_int8 import quantize_int8
from tests.models.tiny import tiny_directory

safetensors_torch = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.usefixtures("one_thread")

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def plain(tmp_path):
    """A tiny Qwen2: with biases, and a head that is its embedding."""
    path = tmp_path / "plain"
    tiny_directory("qwen2", path, intermediate_size=128)
    return path


def tensors_of(path):
    return dict(open_model(path).tensors())


def load(path, weights):
    source = open_model(path)
    return load_decoder(source, dtype=torch.float32, device="cpu", max_len=64, weights=weights)


def expected(weight, kind, group):
    if kind == "int8":
        codes, scale = quantize_int8(weight)
        return codes.float() * scale
    if kind == "fp8":
        codes, scale = quantize_fp8(weight)
        return codes.float() * scale
    return Int4Rows.quantize(weight, group, whole_zeros=True).dequantized()


@pytest.mark.parametrize(("kind", "group"), [("int8", 32), ("fp8", 32), ("int4", 32), ("int4", 64)])
def test_what_is_written(plain, tmp_path, kind, group):
    path, calls = tmp_path / "out", []
    source = open_model(plain)
    total = quantize_checkpoint(
        source, path, Quantizing(kind, group), progress=lambda: calls.append(1)
    )
    assert total == sum(file.stat().st_size for file in path.iterdir())
    assert len(calls) == count_matrices(source) == 7 * 3
    floats, found = tensors_of(plain), tensors_of(path)
    assert open_model(path).packing == kind
    assert set(found) == set(tensor_shapes(source.config)) == set(floats)
    for name, tensor in found.items():
        weight = floats[name][WHOLE]
        quantized = name.endswith("proj.weight")
        assert isinstance(tensor, PackedTensor) == quantized
        meaning = expected(weight, kind, group) if quantized else weight
        torch.testing.assert_close(tensor[WHOLE], meaning, rtol=0, atol=0)
    assert not list(tmp_path.glob(".out-*"))
    if kind == "int8":  # rounded as at loading; fp8 is expanded on a CPU, int4 has other zeros
        again, loaded = (load(*x).weights.layers[1] for x in ((path, "auto"), (plain, kind)))
        assert torch.equal(again.qkv.codes, loaded.qkv.codes)
        assert torch.equal(again.down.scale, loaded.down.scale)
    settings = json.loads((path / "config.json").read_text())
    assert settings["quantization_config"]["quant_method"] == "compressed-tensors"
    assert settings["vocab_size"] == source.config.vocab_size


@pytest.mark.parametrize("shift", [0.0, 3.0, -0.5])
def test_zeros_of_files_are_codes(shift):
    """Also where all weights of a group lie on one side of 0."""
    weight = torch.randn(40, 256) + shift
    rows = Int4Rows.quantize(weight, 64, whole_zeros=True)
    assert torch.equal(rows.zero, rows.zero.round())
    assert ((rows.zero >= 0) & (rows.zero <= 15)).all()
    groups = weight.unflatten(1, (-1, 64))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    step = ((high - low) / 15)[..., None]
    zero = (-low[..., None] / step).round()
    plain = ((groups / step + zero).round().clamp(0, 15) - zero) * step
    error = (rows.dequantized() - weight).square().sum()
    assert error < (plain.flatten(1) - weight).square().sum() * 1.001
    assert torch.equal(Int4Rows.pack(rows.unpacked(), rows.scale, rows.zero).codes, rows.codes)


def test_several_files(plain, tmp_path, monkeypatch):
    one, several = tmp_path / "one", tmp_path / "several"
    quantize_checkpoint(open_model(plain), one, Quantizing("int8"))
    monkeypatch.setattr(quantizing, "SHARD_BYTES", 20_000)
    quantize_checkpoint(open_model(plain), several, Quantizing("int8"))
    assert [file.name for file in one.glob("*.safetensors")] == ["model.safetensors"]
    files = sorted(file.name for file in several.glob("*.safetensors"))
    assert len(files) > 1
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((several / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    again = tensors_of(several)
    for name, tensor in tensors_of(one).items():
        assert torch.equal(again[name][WHOLE], tensor[WHOLE])


def test_weights_that_are_not_finite(plain, tmp_path):
    file = plain / "model.safetensors"
    tensors = safetensors_torch.load_file(file)
    tensors[UP][3, 5] = float("nan")
    safetensors_torch.save_file(tensors, file)
    for kind in ("int8", "fp8", "int4"):
        with pytest.raises(ValueError, match=rf"plain: {UP}: .*NaN or infinity"):
            quantize_checkpoint(open_model(plain), tmp_path / "out", Quantizing(kind))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain"]


def test_bad_calls(plain, tmp_path):
    source = open_model(plain)
    with pytest.raises(ValueError, match="weights is 'int3'; must be one of int8, fp8, int4"):
        Quantizing("int3")
    with pytest.raises(ValueError, match="group is 48; must be one of 32, 64, 128"):
        Quantizing("int4", 48)
    with pytest.raises(ValueError, match="rows have 64 weights; must be a multiple of 128"):
        quantize_checkpoint(source, tmp_path / "out", Quantizing("int4", 128))
    with pytest.raises(ValueError, match="plain: is there already; must be a new folder"):
        quantize_checkpoint(source, plain, Quantizing("int8"))
    with pytest.raises(ValueError, match="nowhere is not a directory"):
        quantize_checkpoint(source, tmp_path / "nowhere" / "out", Quantizing("int8"))
    quantize_checkpoint(source, tmp_path / "out", Quantizing("int8"))
    with pytest.raises(ValueError, match="out: its weights are int8 already"):
        quantize_checkpoint(open_model(tmp_path / "out"), tmp_path / "two", Quantizing("int4"))


def test_command(plain, tmp_path):
    def invoke(*arguments):
        return CliRunner().invoke(app, ["quantize", *map(str, arguments)])

    (plain / "tokenizer_config.json").write_text("{}")
    (plain / "model.safetensors.index.json").write_text("{}")
    result = invoke(plain, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert f"wrote {tmp_path / 'out'}: 0." in result.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer_config.json"}
    assert "model.safetensors.index.json" not in names
    assert open_model(tmp_path / "out").packing == "int4"
    for arguments, message in (
        ((plain, "-o", tmp_path / "out"), "is there already"),
        ((plain, "-o", tmp_path / "two", "--weights", "int2"), "weights is 'int2'"),
        ((plain, "-o", tmp_path / "two", "--group", 48), "group is 48; must be one of 32"),
        (
            (plain, "-o", tmp_path / "two", "--weights", "fp8", "--group", 64),
            "only int4 has groups",
        ),
        (("smollm2", "-o", tmp_path / "two"), "must be a Hugging Face directory"),
        ((tmp_path / "none", "-o", tmp_path / "two"), "there is no such model"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert message in result.stderr

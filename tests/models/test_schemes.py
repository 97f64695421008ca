"""Checkpoints that are quantized already are read as their dequantized twins."""

import json
import re

import pytest
import torch

from gossamer.models import Shard, load_decoder, open_model, source_fingerprint
from gossamer.models.directory import _Slices
from gossamer.models.layout import tensor_shapes
from gossamer.models.packed import Fp8Rows, Int4Rows, Int8Rows, PackedTensor
from gossamer.models.source import WHOLE
from tests.models.quantized import CHECKPOINTS, save
from tests.models.tiny import assert_near, logits_of, random_ids

safetensors_torch = pytest.importorskip("safetensors.torch")

UP, DOWN = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("up", "down"))
KEY = "model.layers.0.self_attn.k_proj.weight"
KINDS = {"int4": Int4Rows, "awq": Int4Rows, "gptq": Int4Rows, "int8": Int8Rows, "fp8": Fp8Rows}


pytestmark = pytest.mark.usefixtures("one_thread")


def load(path, shard=None):
    source = open_model(path)
    return load_decoder(source, dtype=torch.float32, device="cpu", max_len=64, shard=shard)


def tensors_of(path):
    return dict(open_model(path).tensors())


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_of_the_dequantized_twin(name, made):
    path, twin = made(name)
    ids = random_ids()
    assert_near(logits_of(load(path), ids), logits_of(load(twin), ids), 1e-5)
    assert source_fingerprint(open_model(path)) == source_fingerprint(open_model(twin))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_parts(name, made):
    path, twin = made(name)
    floats, source = tensors_of(twin), open_model(path)
    tensors = dict(source.tensors())
    assert set(tensors) == set(tensor_shapes(source.config))
    for weight in (KEY, UP, DOWN, "lm_head.weight"):
        tensor, expected = tensors[weight], floats[weight][WHOLE]
        assert tuple(tensor.shape) == tuple(expected.shape)
        quantized = weight != "lm_head.weight" or CHECKPOINTS[name].head
        assert isinstance(tensor, PackedTensor) == quantized
        columns = expected.shape[1]
        for part in (
            WHOLE,
            (slice(3, 50),),
            (slice(8, 16), slice(8, 16)),
            (slice(None), slice(columns // 2)),
            (slice(5, 77), slice(columns // 4 + 3, columns - 1)),
        ):
            torch.testing.assert_close(tensor[part], expected[part], rtol=1e-6, atol=0)
            assert tensor[part].dtype == torch.float32


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_packed_parts(name, made):
    tensors = tensors_of(made(name)[0])
    kind = KINDS[name.split("-")[0]]
    for weight in (UP, DOWN):
        tensor = tensors[weight]
        columns = tensor.shape[1]
        for part in (
            WHOLE,
            (slice(None), slice(128, columns)),
            (slice(128), slice(128, 256)),
            (slice(128, tensor.shape[0]), slice(columns)),
        ):
            packed = tensor.packed(part)
            assert type(packed) is kind
            assert packed.shape == tuple(tensor[part].shape)
            assert torch.equal(packed.dequantized(), tensor[part])
            assert all(
                getattr(packed, field).is_contiguous() for field in packed.__dataclass_fields__
            )


def test_layout_of_int4_rows():
    codes = torch.randint(0, 16, (3, 64), dtype=torch.uint8)
    scale, zero = torch.rand(3, 2).half(), torch.randint(0, 16, (3, 2)).half()
    packed = Int4Rows.pack(codes, scale, zero)
    assert (packed.codes.shape, packed.shape, packed.group) == ((3, 32), (3, 64), 32)
    for row, run, byte in ((0, 0, 0), (2, 0, 15), (1, 1, 7)):
        pair = codes[row, 32 * run + byte] + 16 * codes[row, 32 * run + byte + 16]
        assert packed.codes[row, 16 * run + byte] == pair
    expected = (codes[2, 40].float() - zero[2, 1].float()) * scale[2, 1].float()
    assert packed.dequantized()[2, 40] == expected


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_shards(name, made):
    """Ranks read rows and columns, whose borders are in the middle of groups here and there."""
    path, twin = made(name)
    for rank in range(4):
        ours, theirs = (load(folder, Shard(rank, 4)).weights for folder in (path, twin))
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            for field in ("qkv", "o", "gate_up", "down"):
                torch.testing.assert_close(
                    getattr(one, field), getattr(other, field), rtol=1e-6, atol=0
                )


def test_parts_that_cannot_be_packed(made):
    tensor = tensors_of(made("awq-32")[0])[DOWN]
    valid = re.escape("must start and end at multiples of 32")
    with pytest.raises(ValueError, match=f"^columns 104 to 208 of {DOWN}; {valid}$"):
        tensor.packed((slice(None), slice(104, 208)))
    tensor = tensors_of(made("fp8-blocks")[0])[DOWN]
    for part, what in (
        ((slice(64),), "rows 0 to 64"),
        ((slice(None), slice(208, 416)), "columns 208 to 416"),
    ):
        with pytest.raises(ValueError, match=f"^{what} of {DOWN}; .* multiples of 128$"):
            tensor.packed(part)


def test_only_what_is_asked_for_is_read(made, monkeypatch):
    """The codes and scales of one shard's rows, and of its columns."""
    read, slices = [], _Slices.__getitem__

    def counting(self, part):
        found = slices(self, part)
        read.append((self.name.rpartition(".")[2], tuple(found.shape)))
        return found

    monkeypatch.setattr(_Slices, "__getitem__", counting)
    names = [UP, DOWN]
    found = dict(open_model(made("awq-32")[0]).tensors(names))
    assert set(found) == set(names)
    up, down = found[UP], found[DOWN]
    read.clear()
    up.packed((slice(64, 128),))
    assert sorted(read) == [("qweight", (256, 8)), ("qzeros", (8, 8)), ("scales", (8, 64))]
    read.clear()
    assert down[:, 64:128].shape == (256, 64)
    assert sorted(read) == [("qweight", (64, 32)), ("qzeros", (2, 32)), ("scales", (2, 256))]


@pytest.mark.parametrize("name", ["int8", "gptq"])
def test_a_matrix_in_several_files(name, made, tmp_path):
    path, twin = made(name)
    tensors = safetensors_torch.load_file(path / "model.safetensors")
    weight_map = {}
    for number in range(3):
        part = dict(sorted(tensors.items())[number::3])
        weight_map |= dict.fromkeys(part, f"{number}.safetensors")
        safetensors_torch.save_file(part, tmp_path / f"{number}.safetensors")
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    index = json.dumps({"weight_map": weight_map})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    ids = random_ids()
    assert_near(logits_of(load(tmp_path), ids), logits_of(load(twin), ids), 1e-5)
    ((found, tensor),) = open_model(tmp_path).tensors([KEY])
    assert found == KEY
    assert torch.equal(tensor[WHOLE], tensors_of(path)[KEY][WHOLE])


def test_matrices_in_floats(made, tmp_path):
    """Whatever the config ignores, and what a checkpoint has in floats anyway."""
    path, twin = made("fp8")
    tensors = safetensors_torch.load_file(path / "model.safetensors")
    floats = safetensors_torch.load_file(twin / "model.safetensors")
    for part in ("weight_scale", "input_scale"):
        del tensors[KEY.removesuffix("weight") + part]
    tensors[KEY] = floats[KEY].bfloat16()
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    save(tmp_path, tensors)
    found = dict(open_model(tmp_path).tensors())
    assert torch.equal(found[KEY][WHOLE], floats[KEY].bfloat16())
    assert not isinstance(found[KEY], PackedTensor)
    assert isinstance(found[UP], PackedTensor)

"""Directories and random weights become decoders; damaged ones become one clear error."""

import json
import math
import re

import pytest
import torch

from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import fingerprint
from gossamer.kv.bases import Basis
from gossamer.kv.folding import fold_v_basis
from gossamer.models import Shard, load_decoder, open_model, source_fingerprint
from gossamer.models.layout import tensor_shapes
from gossamer.models.source import WHOLE
from tests.models.tiny import (
    assert_near,
    expected_logits,
    logits_of,
    random_ids,
    tiny_directory,
    tiny_model,
)

safetensors_torch = pytest.importorskip("safetensors.torch")
pytest.importorskip("transformers")


def load(path, dtype=torch.float32, **settings):
    return load_decoder(open_model(path), dtype=dtype, device="cpu", max_len=64, **settings)


def rewrite(path, change):
    """Change the tensors of a saved model."""
    file = path / "model.safetensors"
    tensors = safetensors_torch.load_file(file)
    change(tensors)
    safetensors_torch.save_file({k: v.contiguous().clone() for k, v in tensors.items()}, file)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_several_files(family, tmp_path):
    model, ids = tiny_model(family), random_ids()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_near(logits_of(load(tmp_path), ids), expected_logits(model, ids), 2e-5)
    assert source_fingerprint(open_model(tmp_path)) == fingerprint(model)
    names = [name for name, _ in open_model(tmp_path).tensors()]
    assert len(names) == len(set(names))


def test_a_source_says_what_it_is(tmp_path):
    model = tiny_directory("llama", tmp_path / "my-model")
    source = open_model(str(tmp_path / "my-model"))
    assert source.name == "my-model"
    assert source.calibration is None
    assert source.tokenizer() is None
    tensors = dict(source.tensors())
    assert set(tensors) == set(tensor_shapes(source.config)) == set(model.state_dict())
    some = dict(source.tensors(["model.norm.weight", "no.such.weight"]))
    assert list(some) == ["model.norm.weight"]
    assert torch.equal(some["model.norm.weight"][WHOLE], model.model.norm.weight)


def test_a_tokenizer_is_found(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tiny_directory("llama", tmp_path)
    words = tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}'
    )
    assert open_model(tmp_path).tokenizer().encode("b a") == [2, 1]
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="its tokenizer cannot be loaded"):
        open_model(tmp_path).tokenizer()


def test_bfloat16_files_and_extras(tmp_path):
    model, ids = tiny_model("llama-tied").to(torch.bfloat16), random_ids()
    model.save_pretrained(tmp_path)
    model = type(model).from_pretrained(tmp_path, dtype=torch.float32)

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    rewrite(tmp_path, add)
    assert_near(logits_of(load(tmp_path), ids), expected_logits(model, ids), 2e-5)


def drop(tensors):
    del tensors["model.layers.1.mlp.up_proj.weight"], tensors["lm_head.weight"]


def add(tensors):
    tensors["model.layers.1.self_attn.q_proj.bias"] = torch.ones(64)


def cut(tensors):
    tensors["model.layers.2.self_attn.k_proj.weight"] = torch.ones(16, 64)


def integers(tensors):
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, r"missing: lm_head\.weight, model\.layers\.1\.mlp\.up_proj\.weight$"),
        (add, r"no place for: model\.layers\.1\.self_attn\.q_proj\.bias"),
        (cut, r"layers\.2\.self_attn\.k_proj\.weight is \[16, 64\]; must be \[32, 64\]"),
        (integers, r"model\.norm\.weight is of torch\.int8; must be"),
    ],
)
def test_other_tensors_than_the_configs(change, message, tmp_path):
    tiny_directory("llama", tmp_path / "tiny")
    rewrite(tmp_path / "tiny", change)
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path / "tiny")
    assert str(caught.value).startswith("tiny: ")


def test_a_head_that_is_not_tied(tmp_path):
    tiny_directory("llama-tied", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.ones(97, 64)}))
    with pytest.raises(ValueError, match=r"lm_head\.weight is not model\.embed_tokens\.weight"):
        load(tmp_path)


class Twice:
    """A source that hands out everything twice."""

    def __init__(self, source):
        self.source, self.name, self.config = source, source.name, source.config

    def tensors(self, *names, **making):
        yield from self.source.tensors(*names, **making)
        yield from self.source.tensors(*names, **making)


def test_twice(tmp_path):
    tiny_directory("llama", tmp_path)
    with pytest.raises(ValueError, match="is there twice"):
        load_decoder(Twice(open_model(tmp_path)), dtype=torch.float32, device="cpu", max_len=8)


class Counting:
    """A source that counts the elements that are read, by the tensor's name."""

    def __init__(self, source):
        self.source, self.name, self.config = source, source.name, source.config
        self.read = {}

    def tensors(self, *names, **making):
        for name, tensor in self.source.tensors(*names, **making):
            yield name, CountingTensor(self.read, name, tensor)


class CountingTensor:
    def __init__(self, read, name, tensor):
        self.read, self.name, self.tensor, self.shape = read, name, tensor, tensor.shape

    def __getitem__(self, part):
        found = self.tensor[part]
        self.read[self.name] = self.read.get(self.name, 0) + found.numel()
        return found


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_shard_reads_its_part(size, folded, tmp_path):
    """Of two KV heads, four ranks read one each; embedding, head and norms are read whole."""
    tiny_directory("llama-bias", tmp_path)
    for rank in range(size):
        shard, source = Shard(rank, size), Counting(open_model(tmp_path))
        shape = shard.kv_shape(source.config)
        turned = torch.randn(shape.layers, shape.kv_heads, shape.head_dim, shape.head_dim)
        load_decoder(
            source,
            dtype=torch.float32,
            device="cpu",
            max_len=8,
            shard=shard,
            v_basis=Basis(turned) if folded else None,
        )
        for name, whole in tensor_shapes(source.config).items():
            share = size if re.search(r"(q|gate|up)_proj|(o|down)_proj\.weight", name) else 1
            if re.search(r"(k|v)_proj", name):
                share = min(size, 2)
            elif rank and re.search(r"(o|down)_proj\.bias", name):  # rank 0 adds it
                assert name not in source.read
                continue
            assert source.read[name] == math.prod(whole) // share, name


@pytest.mark.parametrize("length", [0, 5, 300, -100])
def test_a_truncated_file(length, tmp_path):
    tiny_directory("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a complete safetensors file"):
        load(tmp_path)


def test_damaged_directories(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    name, file = next(iter(good["weight_map"].items()))
    for other, message in (
        ("gone.safetensors", "there is no such file"),
        ("../x.safetensors", "must be a file next to the index"),
    ):
        index.write_text(json.dumps({"weight_map": {**good["weight_map"], name: other}}))
        with pytest.raises(ValueError, match=f"{name} is in .*{message}"):
            open_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {**good["weight_map"], "more.weight": file}}))
    with pytest.raises(ValueError, match=r"has no more\.weight, which .* says is in it"):
        load(tmp_path)
    index.write_text("[]")
    with pytest.raises(ValueError, match=r"index\.json: not an index of safetensors: is a list"):
        open_model(tmp_path)
    index.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"has neither \(only pytorch_model\.bin: convert"):
        open_model(tmp_path)


def test_what_is_not_a_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="built-in models are smollm2"):
        open_model(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"has no config\.json"):
        open_model(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"must be a directory, a \.gguf file or a config\.json"):
        open_model(tmp_path / "notes.txt")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not a config that can be used"):
        open_model(tmp_path)


def test_random_weights(tmp_path):
    """From a config alone, the same for the same seed, and a model that runs."""
    tiny_model("qwen2").config.save_pretrained(tmp_path)
    ids = random_ids()
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(ValueError, match="has neither"):
            open_model(path)
        sources = [open_model(path, random_weights=True, seed=seed) for seed in (3, 3, 4)]
        first, again, other = (
            logits_of(load_decoder(s, dtype=torch.float32, device="cpu", max_len=64), ids)
            for s in sources
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert first.isfinite().all()
    tensors = dict(sources[0].tensors())
    assert (tensors["model.norm.weight"][WHOLE] == 1).all()
    spread = tensors["model.embed_tokens.weight"].std()
    assert 0.018 < spread < 0.022
    one = dict(sources[0].tensors(["model.layers.1.mlp.up_proj.weight"]))
    assert torch.equal(*(t["model.layers.1.mlp.up_proj.weight"] for t in (one, tensors)))
    assert sources[0].name.endswith("with random weights")
    assert sources[0].tokenizer() is None


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_fingerprint_and_folding(family, tmp_path):
    model, ids = tiny_directory(family, tmp_path), random_ids(128)
    calibration = calibrate(model, ids, context=256)
    source = open_model(tmp_path)
    assert source_fingerprint(source) == fingerprint(model) == calibration.manifest.fingerprint
    plain, folded = load(tmp_path), load(tmp_path, v_basis=Basis(calibration.v_basis))
    ids = ids[:40]
    assert_near(logits_of(folded, ids), logits_of(plain, ids), 2e-5)
    fold_v_basis(model, calibration)
    rows = slice((4 + 2) * source.config.head_dim, None)
    for ours, theirs in zip(folded.weights.layers, model.model.layers, strict=True):
        assert torch.equal(ours.qkv[rows], theirs.self_attn.v_proj.weight)
        assert torch.equal(ours.o, theirs.self_attn.o_proj.weight)


def test_arguments(tmp_path):
    tiny_directory("llama", tmp_path)
    with pytest.raises(ValueError, match=r"v_basis is \[3, 2, 8, 8\]; must be \[3, 2, 16, 16\]"):
        load(tmp_path, v_basis=Basis(torch.ones(3, 2, 8, 8)))
    with pytest.raises(
        ValueError, match=r"dtype is torch\.int8; must be float32, float16 or bfloat16"
    ):
        load(tmp_path, dtype=torch.int8)
    rewrite(tmp_path, lambda tensors: tensors.pop("model.layers.0.self_attn.v_proj.weight"))
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.v_proj\.weight is missing"):
        source_fingerprint(open_model(tmp_path))

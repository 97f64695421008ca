"""A setup is known by what results depend on, and by nothing else."""

import json
import shutil

import pytest
import torch

from tests.batch.jobs import OPTIONS, setup
from tests.cli.models import TEMPLATE, tiny_with_words


def test_weights_tell_setups_apart_and_places_do_not(words, tmp_path):
    digest = setup(words).digest()
    moved = shutil.copytree(words, tmp_path / "moved")
    assert setup(moved).digest() == digest
    torch.manual_seed(6)
    other = tiny_with_words(tmp_path / "other")
    assert setup(other).digest() != digest


@pytest.mark.parametrize(
    "name", ["layers.2.mlp.down_proj.weight", "layers.0.input_layernorm.weight"]
)
def test_every_weight_counts(words, tmp_path, name):
    """A fine-tune over the same folder may leave K and V as they were."""
    safetensors = pytest.importorskip("safetensors.torch")
    tuned = shutil.copytree(words, tmp_path / "tuned")
    path = tuned / "model.safetensors"
    tensors = safetensors.load_file(path)
    tensors[f"model.{name}"] += 0.01
    safetensors.save_file(tensors, path, metadata={"format": "pt"})
    assert setup(tuned).digest() != setup(words).digest()


def test_the_order_and_number_of_files_does_not_count(words, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    split = shutil.copytree(words, tmp_path / "split")
    tensors = safetensors.load_file(split / "model.safetensors")
    (split / "model.safetensors").unlink()
    files = {name: f"{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        own = {name: tensor for name, tensor in tensors.items() if files[name] == file}
        safetensors.save_file(own, split / file, metadata={"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": files})
    (split / "model.safetensors.index.json").write_text(index)
    assert setup(split).digest() == setup(words).digest()


def test_the_chat_template_and_the_config_count(words, tmp_path):
    other = shutil.copytree(words, tmp_path / "other")
    (template,) = [path for path in other.iterdir() if TEMPLATE in path.read_text("latin-1")]
    template.write_text(template.read_text().replace(TEMPLATE, "{{ 'w1' }}"))
    ends = shutil.copytree(words, tmp_path / "ends")
    (ends / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert len({setup(path).digest() for path in (words, other, ends)}) == 3


def test_a_cache_that_time_decides_is_refused(words):
    with pytest.raises(ValueError, match=r"--kv is auto:25%, .* name the cache"):
        setup(words, kv="auto:25%")


def test_options_that_change_results(words, tmp_path):
    (tmp_path / "a").write_text("one text")
    (tmp_path / "b").write_text("another text")
    decisive = [
        {},
        {"dtype": "bfloat16"},
        {"max_model_len": 64},
        {"random_weights": True},
        {"calibration_text": tmp_path / "a"},
        {"calibration_text": tmp_path / "b"},
    ]
    digests = {setup(words, options=OPTIONS | options).digest() for options in decisive}
    assert len(digests) == len(decisive)
    same = {"device": "cuda", "kv_memory": "1GB", "max_num_seqs": 2, "enforce_eager": True}
    assert setup(words, options=OPTIONS | same, in_flight=3).digest() in digests

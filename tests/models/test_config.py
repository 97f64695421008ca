"""Configs of transformers become configs of the decoder, or one clear error."""

import dataclasses
import json

import pytest
import torch

from gossamer.kv import KVShape
from gossamer.models import ModelConfig, open_model
from tests.models.tiny import FAMILIES, YARN, tiny_directory, tiny_model

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", FAMILIES)
def test_frequencies_are_those_of_the_module(family):
    model = tiny_model(family)
    config = ModelConfig.from_hf(model.config)
    assert torch.equal(torch.tensor(config.inv_freq), model.model.rotary_emb.inv_freq)
    assert config.rope_scale == model.model.rotary_emb.attention_scaling
    assert config.model_type == family.partition("-")[0]


def test_dimensions():
    config = ModelConfig.from_hf(tiny_model("qwen3").config)
    assert config.kv_shape == KVShape(3, 4, 2, 32)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (64, 96, 97)
    assert (config.eos_ids, config.bos_id, config.max_positions) == ((2,), 1, 512)
    assert config.qk_norm
    assert not config.qkv_bias


def test_biases():
    flags = {}
    for family in ("llama", "llama-bias", "mistral", "qwen2", "qwen3"):
        config = ModelConfig.from_hf(tiny_model(family).config)
        flags[family] = (config.qkv_bias, config.o_bias, config.mlp_bias)
    assert flags.pop("llama-bias") == (True, True, True)
    assert flags.pop("qwen2") == (True, False, False)
    assert set(flags.values()) == {(False, False, False)}


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("llama", (0, 0, 0)),
        ("mistral", (7, 7, 7)),
        ("mistral-full", (0, 0, 0)),
        ("qwen2", (0, 0, 0)),
        ("qwen2-sliding", (0, 5, 5)),
    ],
)
def test_windows(family, windows):
    assert ModelConfig.from_hf(tiny_model(family).config).sliding == windows


def test_yarn_stretches_what_qwen_states():
    settings = {"rope_parameters": YARN, "max_position_embeddings": 128}
    assert ModelConfig.from_hf(tiny_model("qwen2", **settings).config).max_positions == 512


def test_eos_ids(tmp_path):
    tiny_directory("llama", tmp_path, eos_token_id=[5, 3, 5])
    (tmp_path / "generation_config.json").unlink()
    assert open_model(tmp_path).config.eos_ids == (5, 3)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert open_model(tmp_path).config.eos_ids == (7, 9)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    assert open_model(tmp_path).config.eos_ids == (5, 3)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json: not a generation config"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; must be 'silu'"),
        (
            {"quantization_config": {"bits": 4}},
            "quantization_config: quant_method is None; must be one of awq, compressed-tensors",
        ),
        ({"attn_logit_softcapping": 30.0}, "the config has attn_logit_softcapping"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type is 'dynamic'; must be one of default, linear, llama3, yarn",
        ),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5; must be 1"),
        ({"eos_token_id": 97}, "token id 97; must be 0 to 96"),
        ({"num_key_value_heads": 3}, "query_heads is 4; must be a multiple of 3"),
    ],
)
def test_what_the_decoder_does_not_have_is_named(setting, message, tmp_path):
    tiny_directory("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **setting}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=message) as caught:
        open_model(tmp_path)
    assert str(path) in str(caught.value)


def test_other_models_are_refused(tmp_path):
    valid = "must be one of llama, mistral, qwen2, qwen3"
    with pytest.raises(ValueError, match=f"model_type is 'gpt2'; {valid}"):
        ModelConfig.from_hf(transformers.GPT2Config())
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ValueError, match=f"model_type is 'no-such-model'; {valid}"):
        open_model(tmp_path)


def test_layer_types():
    config = tiny_model("qwen3").config
    config.layer_types = ["full_attention", "chunked_attention", "full_attention"]
    with pytest.raises(ValueError, match="layer_types has chunked_attention"):
        ModelConfig.from_hf(config)


def test_numbers_that_do_not_add_up():
    config = ModelConfig.from_hf(tiny_model("llama").config)
    with pytest.raises(ValueError, match="sliding has 1 numbers; must be 3"):
        dataclasses.replace(config, sliding=(0,))
    with pytest.raises(ValueError, match="head_dim is 15; must be even"):
        dataclasses.replace(config, head_dim=15)
    with pytest.raises(ValueError, match="vocab_size is 0; must be an integer >= 1"):
        dataclasses.replace(config, vocab_size=0)

"""Calibrations on the model's own text, and what caches are expected to cost."""

import math

import pytest
import torch

from gossamer.engine import LLM, SamplingParams
from gossamer.integrations import self_calibration
from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.expected_loss import OTHERS, divergence, expected_losses
from gossamer.integrations.self_calibration import Job, Windows, run, sampled_by, self_calibrate
from gossamer.integrations.transformers import kv_shape, use_gossamer
from gossamer.kv import Calibration
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.ladder import LADDER
from gossamer.models import open_model, source_fingerprint
from tests.models.tiny import random_ids, tiny_directory, tiny_model

FAMILIES = ("llama", "mistral-full", "qwen2", "qwen3")


def silent(name, total):
    return lambda count: None


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(self_calibration, "CONTEXT", 160)
    monkeypatch.setattr(self_calibration, "WINDOWS", 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_calibrated_without_a_text_or_a_tokenizer(family, tmp_path):
    tiny_directory(family, tmp_path / "model", max_position_embeddings=256)
    output = tmp_path / "made.safetensors"
    run(Job(str(tmp_path / "model"), str(output), "cpu", "float32"))
    source = open_model(str(tmp_path / "model"))
    made = Calibration.load(output, source_fingerprint(source))
    assert made.manifest.tokens == 2 * 160
    assert set(made.manifest.losses) <= set(LADDER)
    losses = {spec: loss.mean for spec, loss in made.manifest.losses.items()}
    assert 0 <= losses["dense:int8"] < losses["dense:int4"]
    with LLM(source, kv="auto:60%", calibration=output) as llm:
        assert llm.chosen.measured
        assert llm.engine.kv.share(source.config.kv_shape) < 0.6
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4))


def test_losses_are_those_of_the_engine():
    """KL of the engine's own predictions, by its prefill, cache for cache."""
    model = tiny_model("llama", num_hidden_layers=2, hidden_size=128, head_dim=32)
    ids = random_ids(192)
    made = calibrate(model, random_ids(512), context=256)
    specs = ["dense:int4", "coded:20.5%", "k=sparse:.5:int4@channel,v=sparse:.5:int4,v_basis=pca"]
    found = expected_losses(model, [ids], made, specs=specs)
    exact = model(ids[None], use_cache=False).logits[0].detach()
    for spec, loss in found.items():
        with use_gossamer(model, spec, calibration=made), torch.no_grad():
            stored = model(ids[None]).logits[0]
        expected = OTHERS * divergence(exact, stored).double().mean()
        assert loss.mean > 0
        assert math.isclose(loss.mean, float(expected), rel_tol=0.02, abs_tol=1e-5), spec


def test_divergence_is_that_of_the_definition():
    a, b = torch.randn(2, 300, 17, dtype=torch.float64)
    p, q = a.softmax(-1), b.softmax(-1)
    expected = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(divergence(a, b).double(), expected, rtol=1e-4, atol=1e-5)


def test_keys_with_outlier_channels_rule_out_rows_of_four_bits():
    """As biases of Qwen2 make them: a scale per row has no bits left for the other channels."""
    model = tiny_model("qwen2", hidden_size=128)
    for layer in model.model.layers:
        bias = layer.self_attn.k_proj.bias.data
        bias.view(2, -1)[:, -1] = 200.0  # slow channels, which RoPE leaves where they are
    ids = random_ids(320)
    made = self_calibrate(model, Windows([ids[:160].tolist(), ids[160:].tolist()] * 2, "x"), silent)
    losses = {spec: loss.mean for spec, loss in made.manifest.losses.items()}
    kivi = losses["k=dense:int4@channel,v=dense:int4@group"]
    assert losses["dense:int4"] > 10 * kivi


def test_a_transformers_model_writes_its_own_text():
    model = tiny_model("llama", max_position_embeddings=256)
    state = torch.random.get_rng_state()
    windows = sampled_by(model, silent)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {len(window) for window in windows.ids} == {160}
    assert len(windows.ids) == 3
    assert windows.ids[0] != windows.ids[1]
    assert windows.ids == sampled_by(model, silent).ids


def test_use_gossamer_with_a_preset(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    model = tiny_model("llama", head_dim=32, max_position_embeddings=256)
    ids = random_ids(150)[None]
    with use_gossamer(model, kv="auto:40%"), torch.no_grad():
        first = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1

    def unwanted(*_):
        raise AssertionError("it is kept")

    monkeypatch.setattr(self_calibration, "sampled_by", unwanted)
    with use_gossamer(model, kv="auto:40%"), torch.no_grad():
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), first)


def test_a_text_that_is_too_short_says_how_long_it_must_be(tmp_path):
    from tests.cli.models import tiny_with_words  # noqa: PLC0415

    model = tiny_with_words(tmp_path / "model")
    text = tmp_path / "text"
    text.write_text("w1 w2 w3")
    with pytest.raises(ValueError, match=r"has 3 tokens; must have at least 320"):
        run(Job(str(model), str(tmp_path / "out"), "cpu", "float32", str(text)))
    assert not (tmp_path / "out").exists()
    text.write_text(" ".join(f"w{i % 80}" for i in range(500)))
    run(Job(str(model), str(tmp_path / "out"), "cpu", "float32", str(text)))
    assert Calibration.load(tmp_path / "out").manifest.text_sha256


def test_a_model_that_cannot_begin_a_text(tmp_path):
    tiny_directory("llama", tmp_path / "model", bos_token_id=None, eos_token_id=None)
    with pytest.raises(ValueError, match="no token that begins or ends a text"):
        run(Job(str(tmp_path / "model"), str(tmp_path / "out"), "cpu", "float32"))


def test_shapes_from_one_kv_head_to_wide_heads():
    for settings in ({"num_key_value_heads": 1, "head_dim": 80}, {"head_dim": 256}):
        model = tiny_model("llama", num_hidden_layers=1, hidden_size=320, **settings)
        windows = Windows([random_ids(320).tolist() for _ in range(3)])
        made = self_calibrate(model, windows, silent)
        assert isinstance(made.manifest.fingerprint, Fingerprint)
        assert made.manifest.shape == kv_shape(model)
        assert {"dense:int8", "coded:23.5%"} <= set(made.manifest.losses)

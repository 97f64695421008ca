"""One flag: a model that nobody calibrated, in a process of its own and from Python."""

import logging

import pytest

from gossamer.engine import LLM, EngineConfig, auto
from gossamer.engine.auto import settle
from gossamer.kv import Calibration
from gossamer.models import open_model, source_fingerprint
from tests.models.tiny import tiny_directory


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny_directory("llama", path, head_dim=32, max_position_embeddings=160)
    return path


def blank(config, source, output):
    made = Calibration.blank(source.config.kv_shape, source.name)
    manifest = made.manifest
    object.__setattr__(manifest, "fingerprint", source_fingerprint(source))
    made.save(output)


def test_the_first_start_calibrates_and_the_second_does_not(model, monkeypatch):
    with LLM(model, kv="auto:60%", device="cpu") as llm:
        first = llm.chosen
    assert first.measured

    def unwanted(*_):
        raise AssertionError("it is kept")

    monkeypatch.setattr(auto, "_make", unwanted)
    with LLM(model, kv="auto:60%", device="cpu") as llm:
        assert llm.chosen.rung.loss == first.rung.loss
    with LLM(model, kv="coded:25%", device="cpu") as llm:  # a spec that needs one finds it too
        assert llm.chosen is None
        assert llm.engine.kv.resolved


def test_what_is_wrong_in_the_process_is_one_error(tmp_path):
    tiny_directory("llama", tmp_path / "m", head_dim=32, bos_token_id=None, eos_token_id=None)
    with pytest.raises(ValueError, match=r"m cannot be calibrated: the model has no token that"):
        LLM(tmp_path / "m", kv="auto", device="cpu")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_random_weights_need_no_calibration(model):
    with LLM(model, kv="auto", device="cpu", random_weights=True) as llm:
        assert not llm.chosen.measured
        assert "as on SmolLM2" in str(llm.chosen)


def test_windows_in_which_nothing_is_compressed_are_dense(tmp_path, caplog):
    tiny_directory("mistral", tmp_path / "m")  # sees 7 tokens
    with caplog.at_level(logging.WARNING), LLM(tmp_path / "m", kv="auto", device="cpu") as llm:
        assert llm.chosen is None
        assert llm.engine.kv.share(llm.engine.built.source.config.kv_shape) >= 1
    assert "sees 7 tokens" in caplog.text


def test_a_calibration_of_another_model_is_refused(model, tmp_path, monkeypatch):
    tiny_directory("llama", tmp_path / "other", head_dim=32)
    source = open_model(str(tmp_path / "other"))
    blank(None, source, tmp_path / "file")
    with pytest.raises(ValueError, match="does not fit"):
        LLM(model, kv="auto", device="cpu", calibration=tmp_path / "file")


@pytest.mark.parametrize("kv", ["auto:2%", "auto:fast"])
def test_presets_that_cannot_be(model, monkeypatch, kv):
    monkeypatch.setattr(auto, "_make", blank)
    with pytest.raises(ValueError, match=r"auto:[0-9]+\.[0-9]%|must be auto, auto:quality"):
        settle(EngineConfig(model=str(model), kv=kv, device="cpu"))


def test_a_text_and_a_file_are_one_too_many():
    with pytest.raises(ValueError, match="calibration and calibration_text are both given"):
        EngineConfig(model="x", calibration="a", calibration_text="b")


def test_other_caches_are_left_alone(model):
    config = EngineConfig(model=str(model), kv="sparse:k=8,v=8")
    assert settle(config) == (config, None)

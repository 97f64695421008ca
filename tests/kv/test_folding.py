"""Folding V's basis turns what attention sees and leaves what the model says."""

import copy

import pytest
import torch
from torch import nn

from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import (
    attention_function,
    causal_attention,
    fingerprint,
    kv_shape,
)
from gossamer.kv.config import KVConfig
from gossamer.kv.folding import fold_v_basis
from gossamer.kv.moments import Moments
from tests.integrations import FAMILIES, tiny_model

pytest.importorskip("transformers")

TOKENS = 128


def random_ids(tokens=TOKENS):
    return torch.randint(0, 97, (tokens,))


@torch.no_grad()
def values_and_logits(model, ids):
    """What attention sees as V, per layer [Hk, T, D], and the logits."""
    values = {}

    def watch(layer, query, key, value, scaling):
        values[layer] = value[0].clone()
        return causal_attention(layer, query, key, value, scaling)

    with attention_function(model, watch):
        model(ids[None], use_cache=False)
    return [values[layer] for layer in sorted(values)], model(ids[None], use_cache=False).logits


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_untouched(model, before):
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_stay_and_v_turns(family):
    model, ids = tiny_model(family), random_ids()
    calibration = calibrate(model, ids)
    values, logits = values_and_logits(model, ids)
    fold_v_basis(model, calibration)
    turned, folded_logits = values_and_logits(model, ids)

    error = (folded_logits - logits).double().norm() / logits.double().norm()
    assert error < 1e-5
    for before, after, basis in zip(values, turned, calibration.v_basis, strict=True):
        torch.testing.assert_close(after, before @ basis, rtol=1e-4, atol=1e-4)
        assert (after - before).abs().max() > 0.1 * before.abs().max()


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_coded_rows_fold_exactly(family):
    """In float64: any invertible basis, its inverse in the output projection, biases included."""
    model, ids = tiny_model(family), random_ids()
    calibration = calibrate(model, ids)
    v = KVConfig.parse("k=dense,v=coded:50%@none").resolve(calibration).v
    model = model.double()
    values, logits = values_and_logits(model, ids)
    fold_v_basis(model, calibration, v)
    turned, folded_logits = values_and_logits(model, ids)
    torch.testing.assert_close(folded_logits, logits, rtol=1e-9, atol=1e-9)
    basis = calibration.basis("v", v)
    for layer, (before, after) in enumerate(zip(values, turned, strict=True)):
        torch.testing.assert_close(after, before @ basis.matrix[layer], rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="folded already"):
        fold_v_basis(model, calibration, v)
    with pytest.raises(ValueError, match="v is dense:fp16 with basis 'none'; must be coded or"):
        fold_v_basis(model, calibration, KVConfig().v)


def test_v_ends_in_its_principal_axes():
    """Independent of how the basis was applied: V's second moment is now diagonal and sorted."""
    model, ids = tiny_model("qwen2"), random_ids()
    fold_v_basis(model, calibrate(model, ids))
    values, _ = values_and_logits(model, ids)
    for value in values:
        second = value.double().mT @ value.double()
        energies = second.diagonal(dim1=-2, dim2=-1)
        scale = energies.max()
        assert (second - energies.diag_embed()).abs().max() < 1e-4 * scale
        assert (energies.diff(dim=-1) < 1e-4 * scale).all()


def test_a_model_in_bfloat16():
    model, ids = tiny_model("llama-bias"), random_ids()
    calibration = calibrate(model, ids)
    half = copy.deepcopy(model).to(torch.bfloat16)
    _, logits = values_and_logits(model, ids)
    fold_v_basis(half, calibration)
    assert half.model.layers[0].self_attn.v_proj.weight.dtype is torch.bfloat16
    _, folded = values_and_logits(half, ids)
    assert (folded.float() - logits).norm() / logits.norm() < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_fingerprint_survives_dtype_and_folding(dtype):
    model = tiny_model("qwen3")
    before = fingerprint(model)
    assert before.shape == kv_shape(model)
    calibration = calibrate(model, random_ids())
    model = model.to(dtype)
    assert before.difference(fingerprint(model)) is None
    assert before.first_other_v(fingerprint(model)) is None
    fold_v_basis(model, calibration)
    assert before.difference(fingerprint(model)) is None
    assert before.first_other_v(fingerprint(model)) == 0
    assert before.difference(fingerprint(tiny_model("qwen3"))) is not None


def test_another_model_is_refused():
    model = tiny_model("llama")
    before = weights_of(model)
    other = tiny_model("llama")
    other.name_or_path = "/some/where/other-model"
    with pytest.raises(ValueError, match="of other-model does not fit LlamaForCausalLM: they have"):
        fold_v_basis(model, calibrate(other, random_ids()))
    with pytest.raises(ValueError, match=r"one has 3 layers, 6 query and 6 KV heads of 8, the oth"):
        fold_v_basis(model, calibrate(tiny_model("llama-mha"), random_ids()))
    assert_untouched(model, before)


def test_folding_twice_is_refused():
    model = tiny_model("qwen2")
    calibration = calibrate(model, random_ids())
    fold_v_basis(model, calibration)
    before = weights_of(model)
    message = r"Qwen2ForCausalLM: its value projections are not those .* folded already\?"
    with pytest.raises(ValueError, match=message):
        fold_v_basis(model, calibration)
    for copied in (copy.deepcopy(model), model.model, copy.deepcopy(model).to(torch.bfloat16)):
        with pytest.raises(ValueError, match=r"folded already\?"):
            fold_v_basis(copied, calibration)
    assert_untouched(model, before)


def test_folding_twice_is_refused_after_saving_and_loading(tmp_path):
    model = tiny_model("llama-bias")
    calibration = calibrate(model, random_ids())
    model.save_pretrained(tmp_path / "plain")
    fold_v_basis(model, calibration)
    model.save_pretrained(tmp_path / "folded")
    folded = type(model).from_pretrained(tmp_path / "folded")
    before = weights_of(folded)
    calibration.check(fingerprint(folded))
    with pytest.raises(ValueError, match=r"^folded: its value .* \(first in layer 0\); folded al"):
        fold_v_basis(folded, calibration)
    assert_untouched(folded, before)
    plain = type(model).from_pretrained(tmp_path / "plain")
    fold_v_basis(plain, calibration)
    assert_untouched(plain, before)


def test_a_calibration_of_the_folded_model_is_told_apart():
    model, ids = tiny_model("qwen3"), random_ids()
    plain = copy.deepcopy(model)
    fold_v_basis(model, calibrate(model, ids))
    calibration = calibrate(model, ids)
    calibration.check(fingerprint(plain))
    with pytest.raises(ValueError, match="not those that were calibrated"):
        fold_v_basis(plain, calibration)


def test_one_layer_folded_is_enough_to_refuse():
    model, ids = tiny_model("llama"), random_ids()
    calibration = calibrate(model, ids)
    folded = copy.deepcopy(model)
    fold_v_basis(folded, calibration)
    attention = model.model.layers[2].self_attn
    attention.load_state_dict(folded.model.layers[2].self_attn.state_dict())
    before = weights_of(model)
    with pytest.raises(ValueError, match="first in layer 2"):
        fold_v_basis(model, calibration)
    assert_untouched(model, before)


def drop_o_proj(attention):
    del attention.o_proj


def narrow_v_proj(attention):
    attention.v_proj = nn.Linear(48, 8)


def narrow_o_proj(attention):
    attention.o_proj = nn.Linear(40, 48)


def integer_v_proj(attention):
    attention.v_proj.weight = nn.Parameter(torch.zeros(16, 48, dtype=torch.int8), False)


def meta_o_proj(attention):
    attention.o_proj = nn.Linear(48, 48, device="meta")


def no_head_dim(attention):
    del attention.head_dim


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_o_proj, r"self_attn of layer 2 has no matrix o_proj\.weight"),
        (narrow_v_proj, r"v_proj\.weight of layer 2 is \[8, 48\] .* must be \[16, 48\]"),
        (narrow_o_proj, r"o_proj\.weight of layer 2 is \[48, 40\] .* must be \[48, 48\]"),
        (integer_v_proj, r"v_proj\.weight of layer 2 is of torch\.int8; must be plain floats"),
        (meta_o_proj, r"o_proj\.weight of layer 2 is on the meta device; must be plain floats"),
        (no_head_dim, r"self_attn of layer 2 has no integer head_dim"),
    ],
)
def test_modules_built_otherwise_are_refused(damage, message):
    model = tiny_model("llama")
    calibration = calibrate(model, random_ids())
    damage(model.model.layers[2].self_attn)
    first = model.model.layers[0].self_attn
    before = weights_of(first)
    with pytest.raises(ValueError, match=message):
        fold_v_basis(model, calibration)
    assert_untouched(first, before)


def test_a_model_without_attention_is_refused():
    model = tiny_model("llama")
    calibration = calibrate(model, random_ids())
    with pytest.raises(ValueError, match="Linear has no module called self_attn"):
        fold_v_basis(nn.Linear(3, 3), calibration)


def test_moments_take_any_model_shape():
    assert Moments(kv_shape(tiny_model("mistral"))).kk.shape == (3, 3, 8, 8)

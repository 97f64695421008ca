"""Layers in place of those of transformers."""

import copy

import pytest
import torch

from gossamer.layers import GatedMLP, RMSNorm, RotaryEmbedding, replace_layers
from tests.models.tiny import random_ids, tiny_model

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_model_with_our_layers_computes_the_same(family):
    model = tiny_model(family)
    theirs, ids = copy.deepcopy(model), random_ids()[None]
    replaced = replace_layers(model)
    norms = sum(isinstance(m, RMSNorm) for m in model.modules())
    mlps = sum(isinstance(m, GatedMLP) for m in model.modules())
    layers = model.config.num_hidden_layers
    assert mlps == layers
    assert norms == (4 if family == "qwen3" else 2) * layers + 1  # q_norm and k_norm
    assert replaced == norms + mlps
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-5)
    model.load_state_dict(theirs.state_dict())  # the names of all weights are as before
    assert replace_layers(model) == 0


def test_weights_are_shared():
    mlp = tiny_model("llama").model.layers[0].mlp
    ours = GatedMLP.from_transformers(mlp)
    with torch.no_grad():
        mlp.gate_proj.weight.fill_(0.5)
    assert (ours.gate_up[: len(mlp.gate_proj.weight)] == 0.5).all()
    assert ours.down_proj.weight is mlp.down_proj.weight


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rotary_returns_what_transformers_returns(family):
    theirs = tiny_model(family).model.rotary_emb
    ours = RotaryEmbedding.from_transformers(theirs)
    x, positions = torch.zeros(1, dtype=torch.float32), torch.tensor([[0, 3, 17], [5, 6, 7]])
    for got, want in zip(ours(x, positions), theirs(x, positions), strict=True):
        torch.testing.assert_close(got, want)


def test_a_norm_of_another_kind_is_left_alone():
    gemma = transformers.models.gemma.modeling_gemma.GemmaRMSNorm(16)
    with torch.no_grad():
        gemma.weight.normal_()  # it multiplies by 1 + weight
    with pytest.raises(ValueError, match="GemmaRMSNorm computes something else"):
        RMSNorm.from_transformers(gemma)
    assert replace_layers(torch.nn.Sequential(gemma)) == 0

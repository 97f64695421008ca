"""Models in which folding V's basis would change the outputs are refused and left alone."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from gossamer.integrations.calibrating import calibrate
from gossamer.kv.folding import fold_v_basis
from tests.integrations import SIZES, tiny_model

transformers = pytest.importorskip("transformers")


def random_ids(tokens=128):
    return torch.randint(0, 97, (tokens,))


def assert_refused(model, calibration, message):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        fold_v_basis(model, calibration)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


class Wrapper(nn.Linear):
    """What peft's layers look like: a Linear that adds something of its own."""

    def forward(self, x):
        return super().forward(x) + x.mean()


def wrapped(attention, other):
    attention.o_proj = Wrapper(48, 48)


def parametrized(attention, other):
    nn.utils.parametrizations.weight_norm(attention.v_proj)


def hooked(attention, other):
    prune.l1_unstructured(attention.o_proj, "weight", 0.5)


def float8(attention, other):
    weight = attention.q_proj.weight.detach().to(torch.float8_e4m3fn)
    attention.q_proj.weight = nn.Parameter(weight, requires_grad=False)


class Quantized(torch.Tensor):
    """What torchao's weights look like: floats to those who ask, something else inside."""


def quantized(attention, other):
    weight = attention.v_proj.weight.detach().as_subclass(Quantized)
    attention.v_proj.weight = nn.Parameter(weight, requires_grad=False)


def tied_to_layer(attention, other):
    attention.v_proj.weight = other.v_proj.weight


def tied_bias(attention, other):
    attention.v_proj.bias = other.v_proj.bias


def tied_to_k(attention, other):
    attention.v_proj.weight = attention.k_proj.weight


def view_of_o(attention, other):
    attention.o_proj.weight = nn.Parameter(other.o_proj.weight.detach().view(48, 48))


def shared_module(attention, other):
    attention.o_proj = other.o_proj


def gate(attention, other):
    attention.gate = nn.Parameter(torch.rand(48))


def clip(attention, other):
    attention.clip_qkv = 8.0


REFUSED = {
    wrapped: r"o_proj of layer 2 is a .*\.Wrapper; folding requires a plain nn\.Linear",
    parametrized: "v_proj of layer 2 is parametrized; folding requires plain weights",
    hooked: r"o_proj\.weight of layer 2 is a Tensor of torch\.float32; .* plain nn\.Parameter",
    float8: r"q_proj\.weight of layer 2 .* torch\.float8_e4m3fn; .* float64, float32, float16 or",
    quantized: r"v_proj\.weight of layer 2 is a Quantized of .* plain nn\.Parameter",
    tied_to_layer: r"v_proj\.weight of layer 2 shares its memory with v_proj\.weight of layer 0",
    tied_bias: r"v_proj\.bias of layer 2 shares its memory with v_proj\.bias of layer 0",
    tied_to_k: r"v_proj\.weight of layer 2 shares its memory with k_proj\.weight of layer 2",
    view_of_o: r"o_proj\.weight of layer 2 shares .* o_proj\.weight of layer 0; .* has its own",
    shared_module: r"o_proj\.weight of layer 2 shares its memory with o_proj\.weight of layer 0",
    gate: "self_attn of layer 2 has gate; folding requires that it has nothing but k_norm, k_proj",
    clip: r"self_attn of layer 2 has clip_qkv 8\.0; folding requires None",
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_changed_attention(change):
    """The calibration is one of the changed model where that can still be measured."""
    model = tiny_model("llama-bias")
    calibration = calibrate(model, random_ids())
    change(model.model.layers[2].self_attn, model.model.layers[0].self_attn)
    if change is not float8:
        calibration = calibrate(model, random_ids())
    assert_refused(model, calibration, REFUSED[change])


def test_bitnet():
    """A norm between attention and the output projection does not commute with a basis."""
    config = transformers.BitNetConfig(**SIZES, num_key_value_heads=2)
    model = transformers.BitNetForCausalLM(config).eval()
    message = "self_attn of layer 0 has attn_sub_norm; folding requires that it has nothing but"
    assert_refused(model, calibrate(model, random_ids()), message)


@torch.no_grad()
def test_olmo():
    """Clipping V does not commute with a basis; without it, Olmo is as good as any."""
    model = transformers.OlmoForCausalLM(
        transformers.OlmoConfig(**SIZES, num_key_value_heads=2, clip_qkv=0.05)
    ).eval()
    calibration = calibrate(model, random_ids())
    assert_refused(model, calibration, r"layer 0 has clip_qkv 0\.05; folding requires None")
    model.config.clip_qkv = None
    ids = random_ids()[None]
    expected = model(ids).logits
    fold_v_basis(model, calibration)
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)

"""Layers: the same results with and without custom kernels, and by other kernels."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer.layers import GatedMLP, QuantizedLinear, RMSNorm, RotaryEmbedding


class Launched(TorchDispatchMode):
    """The names of all ops that run inside of it."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name().split(".")[0])
        return func(*args, **(kwargs or {}))

    @property
    def ours(self):
        return {name for name in self.names if name.startswith("gossamer::")}


def launched(function, *args):
    with Launched() as mode, torch.no_grad():
        result = function(*args)
    return result, mode


def _norm(kernels):
    norm = RMSNorm(40, eps=1e-5, use_custom_kernels=kernels)
    nn.init.normal_(norm.weight)
    return norm, (torch.randn(3, 5, 40),), {"gossamer::rmsnorm"}


def _residual_norm(kernels):
    norm, (x,), _ = _norm(kernels)
    return norm, (x, torch.randn_like(x)), {"gossamer::fused_residual_rmsnorm"}


def _mlp(kernels, **settings):
    mlp = GatedMLP(40, 96, use_custom_kernels=kernels, **settings)
    return mlp, (torch.randn(2, 3, 40),), {"gossamer::gated_mlp"}


def _quantized(kernels, scheme, op):
    layer = QuantizedLinear.from_linear(nn.Linear(256, 160), scheme, use_custom_kernels=kernels)
    return layer, (torch.randn(5, 256),), {f"gossamer::{op}"}


LAYERS = {
    "norm": _norm,
    "norm and residual": _residual_norm,
    "mlp": _mlp,
    "mlp with biases": lambda k: _mlp(k, bias=True),
    "mlp with gelu": lambda k: _mlp(k, activation="gelu_tanh"),
    "int8": lambda k: _quantized(k, "int8", "linear_int8"),
    "fp8": lambda k: _quantized(k, "fp8", "linear_fp8"),
    "fp8 by tensor": lambda k: _quantized(k, "fp8:tensor", "linear_fp8"),
    "fp8 by block": lambda k: _quantized(k, "fp8:block", "linear_fp8"),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_branches_agree_and_launch_different_kernels(make):
    layer, args, expected = make(True)
    plain = copy.deepcopy(layer)
    plain.use_custom_kernels = False
    got, with_kernels = launched(layer, *args)
    want, without = launched(plain, *args)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert expected <= with_kernels.ours
    assert not expected & without.ours


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("method", ["rotate", "rotate_"])
def test_rotation_with_and_without_kernels(interleaved, method):
    rotary = RotaryEmbedding([1.0, 0.1, 0.01], 50, interleaved=interleaved)
    plain = copy.deepcopy(rotary)
    plain.use_custom_kernels = False
    x, positions = torch.randn(4, 2, 8), torch.tensor([0, 49, 7, 7])
    got, with_kernels = launched(getattr(rotary, method), x.clone(), positions)
    want, without = launched(getattr(plain, method), x.clone(), positions)
    torch.testing.assert_close(got, want)
    assert with_kernels.ours
    assert not without.ours
    torch.testing.assert_close(got[..., 6:], x[..., 6:], rtol=0, atol=0)  # not rotated


def test_gradients_take_the_plain_branch():
    for make in (_norm, _residual_norm, _mlp):
        layer, args, _ = make(True)
        with Launched() as mode:
            result = layer(*args)
        assert not mode.ours
        (result[0] if isinstance(result, tuple) else result).sum().backward()
        assert all(p.grad is not None for p in layer.parameters())


def test_an_mlp_stays_joined_when_it_moves_or_loads():
    mlp = GatedMLP(8, 24, bias=True)
    other = GatedMLP(8, 24, bias=True).double()
    assert other.gate_up.dtype is torch.float64
    mlp.load_state_dict(other.state_dict())
    for one in (mlp, other, copy.deepcopy(mlp)):
        for joined, name in ((one.gate_up, "weight"), (one.gate_up_bias, "bias")):
            gate, up = getattr(one.gate_proj, name), getattr(one.up_proj, name)
            assert gate.data_ptr() == joined.data_ptr()
            assert torch.equal(torch.cat((gate, up)), joined)
    assert torch.equal(mlp.gate_up, other.gate_up.float())


def test_weights_are_used_as_they_are():
    gate_up, down, norm = torch.randn(48, 8), torch.randn(8, 24), torch.randn(8)
    mlp = GatedMLP.with_weights(gate_up, down)
    assert mlp.gate_up is gate_up
    assert mlp.down_proj.weight.data_ptr() == down.data_ptr()
    assert RMSNorm.with_weight(norm, 1e-6).weight.data_ptr() == norm.data_ptr()


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8:tensor", "fp8:block"])
def test_eight_bits_are_close_to_the_layer(scheme):
    linear = nn.Linear(512, 300)
    layer = QuantizedLinear.from_linear(linear, scheme)
    x = torch.randn(2, 7, 512)
    with torch.no_grad():
        want = linear(x)
        error = (layer(x) - want).norm() / want.norm()
    assert error < (0.02 if scheme == "int8" else 0.05)
    again = QuantizedLinear(512, 300, scheme=scheme, bias=True)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))
    assert layer.weight.element_size() == 1


BAD = [
    (lambda: RMSNorm(0), "hidden_size is 0; must be an integer of at least 1"),
    (lambda: RMSNorm(4, eps=-1.0), "eps is -1.0; must be >= 0"),
    (lambda: GatedMLP(4, 0), "intermediate_size is 0; must be an integer of at least 1"),
    (lambda: GatedMLP(4, 4, activation="mish"), "activation is 'mish'; must be one of silu"),
    (lambda: RotaryEmbedding([1.0], 0), "max_positions is 0; must be an integer of at least 1"),
    (lambda: RotaryEmbedding.from_theta(5, 8), "head_dim is 5; must be even and at least 2"),
    (lambda: QuantizedLinear(4, 4, scheme="int4"), "scheme is 'int4'; must be one of int8, fp8"),
    (lambda: GatedMLP.from_transformers(nn.Linear(2, 2)), "Linear is no gated MLP"),
    (lambda: RMSNorm.from_transformers(nn.Linear(2, 2)), "Linear is no RMSNorm"),
    (lambda: RMSNorm.from_transformers(nn.LayerNorm(9)), "LayerNorm computes something else"),
    (lambda: RotaryEmbedding.from_transformers(nn.Linear(2, 2)), "must have an inv_freq"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_errors(call, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        call()


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_weights_that_are_not_finite_are_refused(scheme):
    linear = nn.Linear(8, 4)
    with torch.no_grad():
        linear.weight[2, 3] = float("nan")
    with pytest.raises(ValueError, match="2"):
        QuantizedLinear.from_linear(linear, scheme)

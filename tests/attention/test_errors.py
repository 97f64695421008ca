"""Bad arguments: one exception that names the value and what is valid."""

import pytest
import torch

from gossamer import masked_attention
from gossamer import masks as m
from gossamer.attention import prepare
from gossamer.ops import BackendUnavailableError
from tests.attention.oracle import inputs

Q, K, V = inputs(2, 4, 2, 20, 20, 64)
META = m.DenseMask(torch.ones(20, 20, dtype=torch.bool, device="meta"))


def call(q=Q, k=K, v=V, mask=None, **options):
    return masked_attention(q, k, v, m.Causal() if mask is None else mask, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"mask": m.DenseMask(torch.ones(20, 21, dtype=torch.bool))},
            "20 and 20; must be 20 and 21",
        ),
        ({"mask": m.Documents([5, 16])}, "are 20 and 20; must be 21 and 21"),
        ({"mask": prepare(m.Causal(), 20, 21)}, "20 and 20; must be 20 and 21, as the mask"),
        ({"mask": m.per_head([m.Causal()])}, "heads of q is 4; must be 1, which the mask"),
        ({"mask": m.per_head([m.Causal()] * 8)}, "heads of q is 4; must be 8"),
        ({"mask": m.per_batch([m.Causal()] * 3)}, "batch of q is 2; must be 3"),
        ({"mask": META}, "DenseMask is on meta"),
        ({"mask": ~META | m.Causal()}, "must be on cpu"),
        (
            {"mask": prepare(m.Causal(), 20, 20, "meta")},
            "prepared for meta; must be cpu, the device of q",
        ),
        ({"q": Q[0]}, "q has 3 dimensions; must have 4"),
        ({"k": K[0]}, r"k has shape \[2, 20, 64\]; must be"),
        ({"v": V[:, :, :19]}, r"v has shape \[2, 2, 19, 64\]; must be \[2, 2, 20, 64\]"),
        ({"q": Q[:, :3]}, "q has 3 heads and k 2; must be a multiple"),
        (
            {"q": Q[..., :20], "k": K[..., :20], "v": V[..., :20]},
            "head_dim is 20; must be a multiple of 8",
        ),
        ({"q": Q.transpose(2, 3).contiguous().transpose(2, 3)}, "the last one must be 1"),
        ({"scale": float("nan")}, "scale is nan; must be finite"),
        ({"scale": float("inf")}, "scale is inf; must be finite"),
        ({"softcap": -1.0}, "softcap is -1.0; must be positive"),
        (
            {"bias": torch.zeros(3, 20)},
            r"bias has shape \[3, 20\]; must expand to \[2, 4, 20, 20\]",
        ),
        ({"backend": "gpu"}, "unknown backend 'gpu'"),
    ],
)
def test_values(arguments, message):
    with pytest.raises(ValueError, match=message):
        call(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": torch.ones(20, 20)}, "mask is Tensor; must be a gossamer.masks.Mask"),
        ({"mask": "causal"}, "mask is str; must be"),
        ({"q": [1.0]}, "q is list; must be a torch.Tensor"),
        (
            {"q": Q.double(), "k": K.double(), "v": V.double()},
            "q has dtype float64; must be one of",
        ),
        ({"k": K.half()}, "k has dtype float16; must be float32"),
        ({"v": V.half()}, "v has dtype float16; must be float32"),
        ({"bias": torch.zeros(20, 20, dtype=torch.int32)}, "bias has dtype int32"),
    ],
)
def test_types(arguments, message):
    with pytest.raises(TypeError, match=message):
        call(**arguments)


def test_the_same_errors_when_the_plan_is_known():
    """The first call checks everything; later ones must not be worse off."""
    for mask in (m.Causal(), m.Sliding(3, 3)):
        call(mask=mask)
        with pytest.raises(TypeError, match="v has dtype float16"):
            call(mask=mask, v=V.half())
        with pytest.raises(ValueError, match="v has shape"):
            call(mask=mask, v=V[:, :1])
        with pytest.raises(ValueError, match="scale is nan"):
            call(mask=mask, scale=float("nan"))


def test_gradients():
    with pytest.raises(RuntimeError, match="masked_attention has no gradient"):
        call(q=Q.clone().requires_grad_())
    with torch.no_grad():
        call(q=Q.clone().requires_grad_())


def test_a_backend_that_cannot_run():
    with pytest.raises(BackendUnavailableError, match="cuda: does not run on cpu tensors"):
        call(backend="cuda")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("causal", 3, 3), TypeError, "mask is str; must be a gossamer.masks.Mask"),
        ((m.Causal(), -1, 3), ValueError, "q_len is -1; must be 0 to"),
        ((m.Causal(), 3, 2.0), TypeError, "kv_len is 2.0; must be an integer"),
        ((m.Documents([3]), 3, 4), ValueError, "are 3 and 4; must be 3 and 3"),
    ],
)
def test_prepare(arguments, error, message):
    with pytest.raises(error, match=message):
        prepare(*arguments)

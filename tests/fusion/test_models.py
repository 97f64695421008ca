"""Models of transformers give the same under fusion as without, in every dtype and form."""

import copy

import pytest
import torch

import gossamer
from gossamer.fusion.plan import TORCH
from gossamer.masks import BigBird, Causal, Longformer, Sliding, per_head
from tests.fusion.models import LENGTH, NAMES, inputs, made

TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def check(got, want, dtype):
    for g, w in zip(got.to_tuple(), want.to_tuple(), strict=True):
        error = (g.double() - w.double()).norm() / w.double().norm()
        assert error < TOLERANCE[dtype], error


def kernels(optimized):
    return [step.kernel for program in optimized.plans for step in program.steps]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@torch.no_grad()
def test_same_as_plain(name, dtype):
    model = copy.deepcopy(made(name)).to(dtype)
    given = inputs(name, dtype)
    want = copy.deepcopy(model).float()(**{**given, **_floats(given)})
    optimized = gossamer.optimize(model)
    check(optimized(**given), want, dtype)
    found = kernels(optimized)
    mlp = {"gated_mlp"} if name in ("llama", "t5-gated") else {"linear_act", "gemm_chain"}
    assert mlp & set(found)
    assert name == "gpt2" or "linear" in found  # which has Q, K and V in one already


def _floats(given):
    return {
        k: v.float() for k, v in given.items() if hasattr(v, "dtype") and v.dtype.is_floating_point
    }


MASKS = {
    "sliding": Sliding.symmetric(4),
    "longformer": Longformer(3, [0, range(12, 14)]),
    "bigbird": BigBird(LENGTH, 4, [0], 8, 1),
    "per head": per_head([Sliding(5, 5), Longformer(2, [3])]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("name", ["bert", "llama"])
@torch.inference_mode()
def test_mask_of_the_user(name, mask):
    """As the plain model with the same mask as a tensor; causal models stay causal."""
    model, given = made(name), inputs(name)
    dense = (mask if name == "bert" else mask & Causal()).dense(LENGTH, LENGTH)
    want = model(**given, attention_mask=dense.expand(2, -1, -1, -1))
    optimized = gossamer.optimize(model, mask)
    check(optimized(**given), want, torch.float32)
    assert TORCH not in kernels(optimized)


@torch.inference_mode()
def test_vit_has_odd_lengths():
    model, given = made("vit"), inputs("vit")
    dense = Longformer(2, [0]).dense(17, 17).expand(2, -1, -1, -1)
    want = _with_sdpa_mask(model, given, dense)
    check(gossamer.optimize(model, Longformer(2, [0]))(**given), want, torch.float32)


def _with_sdpa_mask(model, given, dense):
    """ViT takes no mask: every call of SDPA gets it."""
    plain = torch.nn.functional.scaled_dot_product_attention
    try:
        torch.nn.functional.scaled_dot_product_attention = lambda q, k, v, **options: plain(
            q, k, v, **{**options, "attn_mask": dense}
        )
        return model(**given)
    finally:
        torch.nn.functional.scaled_dot_product_attention = plain


@torch.inference_mode()
def test_t5_keeps_its_bias_and_cross_attention():
    """The mask is for self-attention of encoder and decoder, beside the bias of positions."""
    model, given = made("t5", 2), inputs("t5")
    mask = Sliding.symmetric(3)
    encoder = mask.dense(LENGTH, LENGTH).expand(2, -1, -1, -1)
    hidden = model.encoder(given["input_ids"], attention_mask=_additive(encoder))[0]
    decoder = (mask & Causal()).dense(17, 17).expand(2, -1, -1, -1)
    want = model(
        encoder_outputs=(hidden,),
        decoder_input_ids=given["decoder_input_ids"],
        decoder_attention_mask=_additive(decoder),
        use_cache=False,
    )
    got = gossamer.optimize(model, mask)(**given)
    check_logits = (got.logits - want.logits).norm() / want.logits.norm()
    assert check_logits < TOLERANCE[torch.float32]


def _additive(dense):
    return torch.zeros(dense.shape).masked_fill(~dense, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
@torch.inference_mode()
def test_attention_written_out(name):
    """matmul, softmax, matmul instead of SDPA."""
    model, given = made(name, 1, "eager"), inputs(name)
    optimized = gossamer.optimize(model)
    check(optimized(**given), model(**given), torch.float32)
    assert any("cpu" in kernel for kernel in kernels(optimized))


@torch.inference_mode()
def test_padding_is_kept():
    """A mask that depends on inputs is applied by torch's own attention, with the user's."""
    model, given = made("bert"), inputs("bert")
    padding = torch.ones(2, LENGTH, dtype=torch.long)
    padding[1, 15:] = 0
    optimized = gossamer.optimize(model)
    want = model(**given, attention_mask=padding)
    check(optimized(**given, attention_mask=padding), want, torch.float32)
    assert TORCH in kernels(optimized)
    mask = Sliding.symmetric(9)
    both = mask.dense(LENGTH, LENGTH) & padding.bool()[:, None, None, :]
    want = model(**given, attention_mask=both)
    check(gossamer.optimize(model, mask)(**given, attention_mask=padding), want, torch.float32)


@pytest.mark.build
@torch.no_grad()
def test_inductor_compiles_the_rest():
    """One graph around our calls, with weights side by side among its static inputs."""
    model, given = made("bert"), inputs("bert")
    mask = Sliding.symmetric(4)
    want = gossamer.optimize(model, mask)(**given)
    optimized = gossamer.optimize(model, mask, remainder="inductor")
    for _ in range(2):
        check(optimized(**given), want, torch.float32)


@torch.no_grad()
def test_weights_that_change_are_seen():
    """Weights side by side are copies: they are made again when the model's own are written to."""
    model, given = copy.deepcopy(made("gpt2")), inputs("gpt2")
    optimized = gossamer.optimize(model)
    optimized(**given)
    for name, parameter in model.named_parameters():
        if "weight" in name:
            parameter.mul_(0.5)
    check(optimized(**given), model(**given), torch.float32)
    state = {name: torch.randn_like(p) / 8 for name, p in model.named_parameters()}
    model.load_state_dict(state, strict=False, assign=True)
    check(optimized(**given), model(**given), torch.float32)
    assert len(optimized.plans) <= 2

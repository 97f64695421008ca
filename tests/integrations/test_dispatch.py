"""Attention that is not plain and causal is refused inside attention_function, never dropped."""

import pytest
import torch

from gossamer.integrations.calibrating import calibrate
from gossamer.integrations.transformers import attention_function, causal_attention
from tests.integrations import FAMILIES, SIZES, tiny_model

transformers = pytest.importorskip("transformers")


def random_ids(*shape):
    return torch.randint(0, 97, shape)


def tiny_gemma2(**settings):
    own = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 64}
    config = transformers.Gemma2Config(**{**SIZES, **own, **settings})
    return transformers.Gemma2ForCausalLM(config).eval()


@torch.no_grad()
def test_softcap():
    model, ids = tiny_gemma2(sliding_window=256), random_ids(1, 128)
    assert model.config.attn_logit_softcapping == 50.0
    message = "attention has softcap; attention_function supports none"
    with attention_function(model, causal_attention), pytest.raises(ValueError, match=message):
        model(ids)
    with pytest.raises(ValueError, match=message):
        calibrate(model, ids)
    plain = tiny_gemma2(attn_logit_softcapping=None, sliding_window=256)
    expected = plain(ids).logits
    with attention_function(plain, causal_attention):
        torch.testing.assert_close(plain(ids).logits, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_sinks():
    own = {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2}
    config = transformers.GptOssConfig(**{**SIZES, **own, "num_experts_per_tok": 1})
    model = transformers.GptOssForCausalLM(config).eval()
    with (
        attention_function(model, causal_attention),
        pytest.raises(ValueError, match="attention has s_aux"),
    ):
        model(random_ids(1, 12))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_what_does_not_matter_is_let_through(family):
    model, ids = tiny_model(family), random_ids(1, 12)
    positions = torch.arange(12)
    plain = model(ids, labels=ids)
    harmless = [
        {"use_cache": True, "output_hidden_states": True, "output_attentions": False},
        {"position_ids": positions[None], "cache_position": positions, "is_causal": True},
        {"labels": ids, "num_items_in_batch": torch.tensor(11), "softcap": None, "s_aux": None},
        {"token_type_ids": torch.zeros_like(ids), "return_dict": True},
    ]
    with attention_function(model, causal_attention):
        for arguments in harmless:
            found = model(ids, **arguments).logits
            torch.testing.assert_close(found, plain.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"output_attentions": True},
        {"softcap": 30.0},
        {"position_bias": torch.zeros(1, 6, 12, 12)},
        {"cu_seq_lens_q": torch.tensor([0, 6, 12])},
        {"something_new": False},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_what_may_matter_is_refused(family, arguments):
    model, (name,) = tiny_model(family), arguments
    with (
        attention_function(model, causal_attention),
        pytest.raises(ValueError, match=f"attention has {name}; attention_function supports none"),
    ):
        model(random_ids(1, 12), **arguments)


def test_dropout():
    model, ids = tiny_model("llama", attention_dropout=0.5), random_ids(1, 12)
    with attention_function(model, causal_attention):
        model(ids)
        with pytest.raises(ValueError, match="attention has dropout"):
            model.train()(ids)


@torch.no_grad()
def test_models_that_look_ahead():
    model, ids = tiny_model("llama"), random_ids(1, 12)
    with attention_function(model, causal_attention):
        message = (
            "the model's mask is not plainly causal|attention has is_causal"  # 5.0.0: the latter
        )
        with pytest.raises(ValueError, match=message):
            model(ids, is_causal=False)
        model.model.layers[1].self_attn.is_causal = False
        with pytest.raises(ValueError, match="attention has is_causal"):
            model(ids)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@torch.no_grad()
def test_packed_sequences(family):
    """transformers reads them off the positions (without a cache), and masks one from the other."""
    model, ids = tiny_model(family), random_ids(1, 12)
    packed = torch.arange(6).repeat(2)[None]
    with attention_function(model, causal_attention):
        model(ids, position_ids=torch.arange(5, 17)[None], use_cache=False)
        with pytest.raises(ValueError, match=r"mask is not plainly causal \(packed sequences\?\)"):
            model(ids, position_ids=packed, use_cache=False)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@torch.no_grad()
def test_generation(cache):
    if cache == "static" and transformers.__version__.startswith("5.0."):
        pytest.skip("its masks for static caches look like those of packed sequences")
    model, ids = tiny_model("qwen2"), random_ids(1, 12)
    settings = {"max_new_tokens": 5, "do_sample": False, "disable_compile": True}
    expected = model.generate(ids, **settings)

    def attend(layer, query, key, value, scaling):
        """Over what the cache holds, which may be longer than what was written."""
        tokens, start = query.shape[2], seen.get(layer, 0)
        seen[layer] = end = start + tokens
        mask = torch.ones(tokens, end, dtype=torch.bool).tril(start)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key[:, :, :end], value[:, :, :end], mask, scale=scaling, enable_gqa=True
        )

    seen = {}
    with attention_function(model, attend):
        found = model.generate(ids, **settings, cache_implementation=cache)
    assert torch.equal(found, expected)

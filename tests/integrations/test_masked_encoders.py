"""Encoders under gossamer.masked_attention: the mask and the padding both count."""

import pytest
import torch

from gossamer.integrations.transformers import set_attention_pattern, use_masked_attention
from gossamer.masks import Causal, Full, Longformer, Sliding, per_batch
from tests.integrations.encoders import tiny_bert
from tests.integrations.generating import endless_tiny, padded
from tests.models.tiny import random_ids

transformers = pytest.importorskip("transformers")

LENGTHS = (50, 31, 50, 7)


def batch(side="right"):
    return padded([random_ids(length).tolist() for length in LENGTHS], side)


def real(inputs):
    return inputs["attention_mask"].bool()


@pytest.mark.parametrize("name", ["Bert", "Roberta"])
@pytest.mark.parametrize("mask", [Full(), Sliding.symmetric(4), Longformer(6, [0, 3])])
@torch.no_grad()
def test_against_a_dense_mask(name, mask):
    model, inputs = tiny_bert(name), batch()
    seen = mask.dense(50, 50)[0, 0] & real(inputs)[:, None]
    expected = model(inputs["input_ids"], attention_mask=seen[:, None]).last_hidden_state
    with use_masked_attention(model, mask):
        got = model(**inputs).last_hidden_state
        whole = model(inputs["input_ids"][:1]).last_hidden_state  # without a mask of padding
    torch.testing.assert_close(got[real(inputs)], expected[real(inputs)], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole, expected[:1], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_left_padding_shifts_nothing():
    """A mask counts a row's own tokens, wherever they are."""
    model, prompts = tiny_bert(), [random_ids(length).tolist() for length in LENGTHS]
    model.embeddings.position_embeddings.weight.zero_()  # these do depend on the column
    with use_masked_attention(model, Longformer(2, [0])):
        alone = [model(torch.tensor([p])).last_hidden_state[0] for p in prompts]
        inputs = padded(prompts, "left")
        got = model(**inputs).last_hidden_state
    for row, expected in enumerate(alone):
        torch.testing.assert_close(got[row, -len(expected) :], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_modernbert_keeps_its_own_windows():
    settings = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    model = tiny_bert("ModernBert", num_hidden_layers=4, local_attention=16, **settings)
    inputs = batch()
    expected = model(**inputs).last_hidden_state
    try:
        with use_masked_attention(model, Full()):
            got = model(**inputs).last_hidden_state
    except ValueError as error:  # before transformers 5.4 or so
        assert "does not use transformers' AttentionInterface" in str(error)  # noqa: PT017
        return
    torch.testing.assert_close(got[real(inputs)], expected[real(inputs)], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_decoders_stay_causal():
    model, ids = endless_tiny("llama", head_dim=32), random_ids(40)[None]
    expected = model(ids, use_cache=False).logits
    with use_masked_attention(model, Full()):
        torch.testing.assert_close(model(ids, use_cache=False).logits, expected)
    with use_masked_attention(model, Causal()):
        torch.testing.assert_close(model(ids, use_cache=False).logits, expected)
        out = model(ids)
        with pytest.raises(ValueError, match="1 queries and 41 keys; must be as many"):
            model(ids[:, :1], past_key_values=out.past_key_values)


@torch.no_grad()
def test_everything_is_as_before():
    model, inputs = tiny_bert(), batch()
    before, name = model(**inputs).last_hidden_state, model.config._attn_implementation
    with use_masked_attention(model, Sliding.symmetric(1)):
        assert not torch.equal(model(**inputs).last_hidden_state, before)
    assert model.config._attn_implementation == name
    assert torch.equal(model(**inputs).last_hidden_state, before)


@torch.no_grad()
def test_pattern_that_stays():
    """For models that were loaded with the name; the innermost `with` wins, then it is back."""
    model, inputs = tiny_bert(), batch()
    set_attention_pattern(model, Sliding.symmetric(2))
    model.set_attn_implementation("gossamer_masked")
    near = model(**inputs).last_hidden_state
    with use_masked_attention(model, Full()):
        assert not torch.equal(model(**inputs).last_hidden_state, near)
    assert torch.equal(model(**inputs).last_hidden_state, near)
    set_attention_pattern(model, None)
    with pytest.raises(ValueError, match="'gossamer_masked' needs a mask"):
        model(**inputs)


@torch.no_grad()
def test_bad_input():
    model, inputs = tiny_bert(), batch()
    with (
        pytest.raises(TypeError, match=r"mask is str; must be a gossamer.masks.Mask"),
        use_masked_attention(model, "sliding"),
    ):
        pass
    holes = inputs["attention_mask"].clone()
    holes[2, 10] = 0
    with use_masked_attention(model, Full()):
        with pytest.raises(ValueError, match="row 2 of attention_mask has padding between tokens"):
            model(inputs["input_ids"], attention_mask=holes)
        with pytest.raises(ValueError, match=r"attention_mask has shape \[4, 1, 50, 50\]"):
            model(inputs["input_ids"], attention_mask=torch.ones(4, 1, 50, 50, dtype=torch.bool))
    with (
        use_masked_attention(model, per_batch([Full()] * 4)),
        pytest.raises(ValueError, match="made for 4 batch elements and the batch has padding"),
    ):
        model(**inputs)
    with use_masked_attention(model, per_batch([Full(), Causal(), Full(), Full()])):
        model(inputs["input_ids"])

"""Peers on tiny models: likelihoods, generation, bytes."""

import pytest
import torch

from gossamer.evaluation.peers import DEFAULT_SPECS, parse_peer
from gossamer.evaluation.peers.method import MethodAttention
from gossamer.evaluation.peers.mustafar import format_bytes
from gossamer.integrations.transformers import attention_function
from tests.evaluation.peers import Numbers, model_of_32
from tests.models.tiny import random_ids, tiny_model

# Nothing is left out, so nothing may change.
LOSSLESS = (
    "exact",
    "kivi:16",
    "mustafar:0.0",
    "streaming:1",
    "snapkv:1.0",
    "expected:1",
    "think:0",
)
LOSSY = [spec for spec in DEFAULT_SPECS if not spec.startswith("quantized")]
# Of 120 tokens, so that windows are shorter than what is measured.
SHORT = ["kivi:4,window=32", "mustafar:0.5", "streaming:0.25", "snapkv:0.5,window=8",
         "expected:0.25", "think:0.5,window=8"]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return model_of_32()


def peer_of(spec, model):
    return parse_peer(spec)(model, Numbers())


@torch.no_grad()
def plain_logprobs(model, ids):
    logits = model(ids[None], use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, ids[1:, None]).flatten()


@torch.no_grad()
def plain_greedy(model, ids, new, **settings):
    out = model.generate(
        ids[None], attention_mask=torch.ones_like(ids[None]), do_sample=False, max_new_tokens=new,
        pad_token_id=0, **settings,
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


def assert_near(found, expected):
    torch.testing.assert_close(torch.as_tensor(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", LOSSLESS)
def test_without_compression_it_is_the_plain_model(spec, model):
    peer, ids = peer_of(spec, model), random_ids(70)
    first, second = peer.loglikelihood([ids.tolist(), ids[:9].tolist()])
    assert_near(first, plain_logprobs(model, ids))
    assert_near(second, plain_logprobs(model, ids[:9]))
    texts = peer.generate([ids[:50].tolist(), "5 6 7"], [8, 3])
    assert [int(word) for word in texts[0].split()] == plain_greedy(model, ids[:50], 8)
    assert [int(w) for w in texts[1].split()] == plain_greedy(model, torch.tensor([5, 6, 7]), 3)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral-full", "llama-mha"])
def test_other_families(family):
    model, ids = tiny_model(family), random_ids(40)
    assert_near(
        peer_of("exact", model).loglikelihood([ids.tolist()])[0], plain_logprobs(model, ids)
    )
    for spec in ("mustafar:0.5,window=4", "snapkv:0.5,window=4"):
        peer = peer_of(spec, model)
        found = torch.tensor(peer.loglikelihood([ids.tolist()])[0])
        assert found.isfinite().all()
        assert not torch.allclose(found, plain_logprobs(model, ids), atol=1e-3)


@pytest.mark.parametrize("spec", SHORT)
def test_likelihoods_change_where_first_scored_says(spec, model):
    ids = random_ids(120)
    peer, plain = peer_of(spec, model), plain_logprobs(model, ids)
    change = torch.tensor(peer.loglikelihood([ids.tolist()])[0]) - plain
    first = peer.first_scored(120)
    assert first == (61 if spec.split(":")[0] in ("snapkv", "expected", "think") else 1)
    assert change[: first - 1].abs().sum() < 1e-3  # logprob i is that of token i + 1
    assert change[first - 1 :].abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("spec", SHORT)
def test_generation_is_greedy_under_the_method(spec, model):
    """Against passes over the whole text so far, without a cache, of which the prompt is exact."""
    peer, ids = peer_of(spec, model), random_ids(100)
    text = ids
    for _ in range(6):
        with attention_function(model, MethodAttention(peer.method, 100, 100)):
            token = model(text[None], use_cache=False).logits[0, -1].argmax()
        text = torch.cat([text, token[None]])
    found = peer.generate([ids.tolist()], [6])[0]
    assert [int(word) for word in found.split()] == text[100:].tolist()


def test_generation_ends_with_the_text():
    model = model_of_32()
    ids = random_ids(20)
    tokens = plain_greedy(model, ids, 10)
    model.generation_config.eos_token_id = [96, tokens[4]]
    found = peer_of("exact", model).generate([ids.tolist()], [10])[0]
    assert [int(w) for w in found.split()] == tokens[: tokens.index(tokens[4])]
    assert peer_of("exact", model).generate([ids.tolist()], [0]) == [""]


def test_bytes_by_hand(model):
    """3 layers of 2 KV heads of 32 channels: dense is 3 * 2 * (32 + 32) * 2 = 768 bytes."""
    # 4 bits: 32 / 2 = 16 bytes of codes and 4 of scale and minimum, for K and for V.
    # 2 bits: 8 and 4. ThinK: 16 of 32 channels of K. mustafar: below.
    expected = {
        "exact": 768,
        "kivi:4": 3 * 2 * 2 * (16 + 4),
        "kivi:2": 3 * 2 * 2 * (8 + 4),
        "kivi:16": 768,
        "streaming:0.25": 192,
        "snapkv:0.5": 384,
        "expected:0.125": 96,
        "think:0.5": 3 * 2 * (16 + 32) * 2,
    }
    for spec, size in expected.items():
        peer = peer_of(spec, model)
        assert (peer.bytes_per_token, peer.share) == (size, size / 768), spec
        assert peer.name == spec


def test_bytes_of_mustafar(model):
    """A tile has 8 bytes of bitmap and 4 of offset, and its entries in eights of 16 bytes.

    Without pruning, head_dim 64, K has a tile of 64 tokens for each channel, V one of 64 channels
    for each token: 64 entries of 2 bytes, 12 beside them; 2 * (128 + 12) bytes for a token, and
    4 bytes for the end of each of the two sequences of 4,096 tokens.
    """
    assert format_bytes(0.0, 64) == 2 * (128 + 12) + 2 * 4 / 4096
    # V at 50% of 64: 33 kept, which are 40 with padding: 80 + 12. K: its 33 in 64 are spread over
    # channels, so a tile has 33 on average, and about 3.5 of padding: between 66 and 80 bytes.
    assert 66 + 12 + 80 + 12 < format_bytes(0.5, 64) < 80 + 12 + 80 + 12
    peer = peer_of("mustafar:0.5", model)
    assert peer.bytes_per_token == 6 * format_bytes(0.5, 32)


@pytest.mark.parametrize("spec", LOSSY)
def test_default_specs_run(spec, model):
    peer, ids = peer_of(spec, model), random_ids(300).tolist()
    assert len(peer.loglikelihood([ids])[0]) == 299
    assert len(peer.generate([ids], [2])[0].split()) == 2
    # Quest keeps all tokens and the extremes of pages: it saves reading, not memory.
    assert 1 < peer.share < 1.07 if spec.startswith("quest") else 0 < peer.share < 1


def test_bad_questions(model):
    peer = peer_of("kivi:4", model)
    cases = [
        (lambda: peer.generate(["1 2"], [1, 2]), "1 prompts and 2 max_tokens; must agree"),
        (lambda: peer.generate([""], [1]), "a prompt or window has 0 tokens; must have at least 1"),
        (lambda: peer.generate(["1"], [-1]), "max_tokens is -1; must be >= 0"),
        (lambda: peer.loglikelihood([[]]), "a prompt or window has 0 tokens"),
        (lambda: peer.loglikelihood([[1, 97]]), "token ids 1 to 97; must be 0 to 96"),
        (
            lambda: peer.generate([[1] * 510], [3]),
            "510 tokens and 3 new ones; must be at most 512, the model's context",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="the model has no tokenizer"):
        parse_peer("exact")(model, None).generate([[1]], [1])
    assert peer.loglikelihood([[7]]) == [[]]
    assert peer.generate([], []) == []


def test_models_that_a_method_cannot_store():
    model = tiny_model("llama")  # heads of 16
    with pytest.raises(ValueError, match="head_dim is 16; must be a multiple of 32"):
        peer_of("kivi:4", model)
    sliding = peer_of("exact", tiny_model("mistral"))
    with pytest.raises(ValueError, match="sliding window is 7"):
        sliding.loglikelihood([list(range(20))])

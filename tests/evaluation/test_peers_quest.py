"""Quest against a slow, direct reading of its rule."""

import math

import pytest
import torch

from gossamer.evaluation.peers import parse_peer
from gossamer.evaluation.peers.method import MethodAttention
from gossamer.evaluation.peers.quest import Quest, page_bounds
from gossamer.integrations.transformers import attention_function, causal_attention
from tests.evaluation.peers import SCALING, Numbers, check, model_of_32, qkv
from tests.models.tiny import random_ids


def slow_bound(query, keys):
    """Of one query and the keys of one page."""
    total = 0.0
    for c in range(len(query)):
        column = [float(key[c]) for key in keys]
        total += max(float(query[c]) * min(column), float(query[c]) * max(column))
    return total


def slow_tokens(q, k, head, i, share, page, groups):
    """The tokens that the query at position i reads in one KV head."""
    own = range(i // page * page, i + 1)
    bounds = {}
    for p in range(i // page):
        keys = [k[0, head, j] for j in range(p * page, (p + 1) * page)]
        heads = range(head * groups, (head + 1) * groups)
        bounds[p] = max(slow_bound(q[0, h, i], keys) for h in heads)
    read = set(own)
    for p in sorted(bounds, key=lambda p: -bounds[p]):
        if len(read) >= share * (i + 1):
            break
        read |= set(range(p * page, (p + 1) * page))
    return sorted(read)


@pytest.mark.parametrize(("share", "page", "groups"), [(0.3, 4, 2), (0.5, 3, 1), (0.1, 5, 3)])
@pytest.mark.parametrize("prompt", [0, 11])
def test_quest(share, page, groups, prompt):
    counts = []

    def view(q, k, v, head, i):
        tokens = slow_tokens(q, k, head, i, share, page, groups)
        counts.append((len(tokens), i + 1))
        return [(k[0, head, j], v[0, head, j]) for j in tokens]

    check(Quest(share, page, dense=0), 27, prompt, view, width=8, groups=groups)
    # The share at least, and less than a page more; or the query's own page.
    assert all(share * n <= read < max(share * n, 1) + page for read, n in counts)
    assert any(read < n for read, n in counts)


def test_bounds_are_above_every_score():
    q, k, _ = qkv(50, width=16, groups=3)
    bounds = page_bounds(q[0], k[0], 8)
    assert bounds.shape == (2, 50, 6)  # the last 2 tokens are no full page
    scores = torch.einsum("hgtd,hsd->hgts", q[0].unflatten(0, (2, 3)), k[0, :, :48])
    best = scores.unflatten(3, (6, 8)).amax((1, 4))
    assert (bounds >= best - 1e-4).all()
    one = page_bounds(q[0], k[0], 1)  # of a page of one token they are the scores
    scores = torch.einsum("hgtd,hsd->hgts", q[0].unflatten(0, (2, 3)), k[0])
    torch.testing.assert_close(one, scores.amax(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 600])  # 600: more queries than one piece has
def test_all_pages_are_exact_attention(tokens):
    q, k, v = qkv(tokens)
    found = MethodAttention(Quest(1.0, dense=0), 0, tokens)(0, q, k, v, SCALING)
    expected = causal_attention(0, q, k, v, SCALING)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_page_that_matters_is_found():
    """One key among 160 is the query's direction: its page is read, so its value is found."""
    q, k, v = qkv(160, groups=1, kv_heads=1)
    k[0, 0, 37] = 40 * q[0, 0, 159]
    found = MethodAttention(Quest(0.2, dense=0), 0, 160)(0, q, k, v, SCALING)[0, 0, 159]
    torch.testing.assert_close(found, v[0, 0, 37], rtol=1e-3, atol=1e-3)


def test_the_first_layers_read_everything():
    q, k, v = qkv(64)
    attention = MethodAttention(Quest(0.25, page=4), 0, 64)
    exact = causal_attention(0, q, k, v, SCALING)
    for layer, same in ((0, True), (1, True), (2, False)):
        found = attention(layer, q, k, v, SCALING)
        assert torch.allclose(found, exact, rtol=1e-4, atol=1e-5) == same


def test_later_tokens_change_nothing():
    """Teacher-forced is as decoded: neither later keys nor later queries are in what is read."""
    q, k, v = qkv(75)
    method = Quest(0.25, page=8, dense=0)
    at_once = MethodAttention(method, 40, 40)(1, q, k, v, SCALING)
    attention = MethodAttention(method, 40, 40)
    parts = [attention(1, *(x[:, :, :40] for x in (q, k, v)), SCALING)]
    for i in range(40, 75):
        parts.append(attention(1, q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], SCALING))
    torch.testing.assert_close(torch.cat(parts, 2), at_once, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_on_a_model():
    torch.manual_seed(4)
    model, ids = model_of_32(), random_ids(100)
    exact = parse_peer("exact")(model, Numbers())
    everything, dense, quest = (
        parse_peer(spec)(model, Numbers())
        for spec in ("quest:1", "quest:0.1,dense=3", "quest:0.25,page=4,dense=0")
    )
    plain = exact.loglikelihood([ids.tolist()])[0]
    for peer in (everything, dense):
        assert peer.loglikelihood([ids.tolist()])[0] == pytest.approx(plain, abs=1e-4)
        assert peer.generate([ids.tolist()], [5]) == exact.generate([ids.tolist()], [5])
    change = torch.tensor(quest.loglikelihood([ids.tolist()])[0]) - torch.tensor(plain)
    assert quest.first_scored(100) == 1
    assert change.abs().max() > 1e-3
    text = ids
    for _ in range(6):  # without a cache, of which the prompt is exact
        with attention_function(model, MethodAttention(quest.method, 100, 100)):
            token = model(text[None], use_cache=False).logits[0, -1].argmax()
        text = torch.cat([text, token[None]])
    found = quest.generate([ids.tolist()], [6])[0]
    assert [int(word) for word in found.split()] == text[100:].tolist()


def test_bytes_are_more_than_dense():
    """3 layers of 2 KV heads of 32 channels, 768 bytes; two rows of 64 for 16 (8) tokens."""
    model = model_of_32()
    sizes = {
        "quest:0.25": 768 + 1 * 2 * 2 * 64 / 16,
        "quest:0.5,dense=0": 768 + 3 * 2 * 2 * 64 / 16,
        "quest:0.5,page=8,dense=1": 768 + 2 * 2 * 2 * 64 / 8,
        "quest:0.5,dense=9": 768,
    }
    for spec, size in sizes.items():
        peer = parse_peer(spec)(model, None)
        assert (peer.bytes_per_token, peer.share) == (size, size / 768), spec


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quest(0), "share is 0; must be above 0 and at most 1"),
        (lambda: Quest(math.nan), "share is nan; must be above 0 and at most 1"),
        (lambda: Quest(0.5, 0), "page is 0; must be an integer >= 1"),
        (lambda: Quest(0.5, dense=-1), "dense is -1; must be an integer >= 0"),
        (lambda: parse_peer("quest"), "peer 'quest': quest stands alone; must be followed by a "
                                      "number, as in :4"),
        (lambda: parse_peer("quest:2"), "peer 'quest:2': share is 2; must be above 0 and at most "
                                        "1"),
    ],
)  # fmt: skip
def test_bad_settings(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert str(caught.value) == message


def test_one_sequence_only():
    q, k, v = (torch.cat([x, x]) for x in qkv(6))
    with pytest.raises(ValueError, match="a batch of 2; must be one sequence"):
        MethodAttention(Quest(0.5, dense=0), 0, 6)(0, q, k, v, SCALING)

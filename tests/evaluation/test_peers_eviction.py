"""Methods that leave out tokens or channels, against a slow, direct reading of their rules."""

import math

import pytest
import torch

from gossamer.evaluation.peers import parse_peer
from gossamer.evaluation.peers.eviction import Expected, SnapKV, Streaming
from gossamer.evaluation.peers.think import ThinKChannels
from gossamer.integrations.transformers.attention_function import _functions
from gossamer.kv.folding import attention_layers
from tests.evaluation.peers import SCALING, check, model_of_32, qkv


@pytest.mark.parametrize("prompt", [0, 12])
def test_streaming(prompt):
    """A quarter of 24 (or 12) tokens: 6 (3, which the sinks and the query's own make 4)."""
    room = 6 if prompt == 0 else 4

    def view(q, k, v, head, i):
        kept = [j for j in range(i + 1) if j < 3 or i - j < room - 3]
        assert len(kept) == min(i + 1, room)
        return [(k[0, head, j], v[0, head, j]) for j in kept]

    check(Streaming(0.25, sinks=3), 24, prompt, view)


def snapkv_kept(q, k, head, prompt, window, kernel, budget):
    """Prompt tokens that stay in one KV head, by loops."""
    mass = [0.0] * (prompt - window)
    for h in (2 * head, 2 * head + 1):
        for i in range(prompt - window, prompt):
            scores = [math.exp(SCALING * float(q[0, h, i] @ k[0, head, j])) for j in range(i + 1)]
            for j in range(prompt - window):
                mass[j] += scores[j] / sum(scores) / 2
    reach = kernel // 2
    pooled = [sum(mass[max(j - reach, 0) : j + reach + 1]) / kernel for j in range(len(mass))]
    best = sorted(range(len(pooled)), key=lambda j: -pooled[j])[: budget - window]
    return {*best, *range(prompt - window, prompt)}


def test_snapkv():
    prompt, window, kernel, known = 20, 4, 3, {}

    def view(q, k, v, head, i):
        if head not in known:
            known[head] = snapkv_kept(q, k, head, prompt, window, kernel, budget=10)
        seen = [j for j in range(i + 1) if j in known[head] or j >= prompt]
        return [(k[0, head, j], v[0, head, j]) for j in seen]

    check(SnapKV(0.5, window, kernel), 26, prompt, view)
    assert [len(kept) for kept in known.values()] == [10, 10]


def test_snapkv_keeps_its_window_whatever_the_share():
    method = SnapKV(0.1, window=8)
    q, k, v = qkv(12)
    cache = method.start(12)
    cache.end_prompt(q, k, v, SCALING)
    assert cache.kept.sum(1).tolist() == [8, 8]
    cache = method.start(5)  # fewer tokens than the window
    cache.end_prompt(q[:, :, :5], k[:, :, :5], v[:, :, :5], SCALING)
    assert cache.kept.all()


def test_expected_attention():
    prompt, sinks, known = 15, 2, {}

    def kept(q, k, v, head):
        score = torch.zeros(prompt - sinks, dtype=torch.float64)
        for h in (2 * head, 2 * head + 1):
            queries = q[0, h, sinks:prompt].double()
            mean, covariance = queries.mean(0), queries.T.cov(correction=0)
            logs = []
            for j in range(sinks, prompt):
                key = SCALING * k[0, head, j].double()
                logs.append(float(mean @ key + key @ covariance @ key / 2))
            total = sum(math.exp(x) for x in logs)
            score += torch.tensor([math.exp(x) / total for x in logs]) / 2
        score *= v[0, head, sinks:prompt].double().norm(dim=-1)
        best = sorted(range(len(score)), key=lambda j: -float(score[j]))[: 8 - sinks]
        return {*range(sinks), *(j + sinks for j in best)}

    def view(q, k, v, head, i):
        if head not in known:
            known[head] = kept(q, k, v, head)
        seen = [j for j in range(i + 1) if j in known[head] or j >= prompt]
        return [(k[0, head, j], v[0, head, j]) for j in seen]

    check(Expected(0.5, sinks), 18, prompt, view, width=8)  # half of 15: 8


def test_think():
    prompt, window = 14, 4

    def view(q, k, v, head, i):
        importance = []
        for c in range(32):
            queries = q[0, 2 * head : 2 * head + 2, prompt - window : prompt, c]
            importance.append(float(queries.norm() * k[0, head, :prompt, c].norm()))
        gone = sorted(range(32), key=lambda c: importance[c])[:12]  # int(0.4 * 32)
        rows = []
        for j in range(i + 1):
            key = k[0, head, j].clone()
            if j < prompt - window:
                key[gone] = 0
            rows.append((key, v[0, head, j]))
        return rows

    check(ThinKChannels(0.4, window), 17, prompt, view)


def test_what_comes_after_compression_cannot_choose():
    """With before=8, a prompt's last 8 tokens do not change what is kept of the others."""
    torch.manual_seed(5)
    model = model_of_32()
    prompt = torch.randint(3, 90, (80,)).tolist()
    kept = []
    for tail in (prompt[-8:], prompt[-16:-8]):
        for spec in ("snapkv:0.25,window=8,before=8", "snapkv:0.25,window=8"):
            peer = parse_peer(spec)(model, None)
            with peer._decoding(80) as step:
                step(torch.tensor([*prompt[:-8], *tail]))
                caches = _functions[attention_layers(model)[0]][-1]._layers
                kept.append(torch.stack([cache.kept[:, :64] for cache in caches.values()]))
    early, late, early_other, late_other = kept
    assert torch.equal(early, early_other)
    assert not torch.equal(late, late_other)

"""A tokenizer of numbers, tiny models, and attention by loops, for the tests of peers."""

import math

import torch

from gossamer.evaluation.peers.method import MethodAttention
from tests.models.tiny import tiny_model

SCALING = 0.2


class Numbers:
    """Texts are token ids with spaces between them."""

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(map(str, ids))


def model_of_32(family="llama", **settings):
    """4 query heads, 2 KV heads of 32 channels, 3 layers; it never ends a text by itself."""
    model = tiny_model(family, head_dim=32, **settings)
    model.generation_config.eos_token_id = None
    return model


def qkv(tokens, width=32, groups=2, kv_heads=2):
    q = torch.randn(1, kv_heads * groups, tokens, width)
    return q, torch.randn(1, kv_heads, tokens, width), torch.randn(1, kv_heads, tokens, width)


def slow_attention(q, k, v, scaling, view):
    """view(head, i): (key, value) rows that the query at position i sees in a KV head."""
    out = torch.zeros_like(q, dtype=torch.float64)
    for h in range(q.shape[1]):
        kv_head = h // (q.shape[1] // k.shape[1])
        for i in range(q.shape[2]):
            rows = view(kv_head, i)
            scores = [scaling * float(q[0, h, i].double() @ key.double()) for key, _ in rows]
            weights = [math.exp(s - max(scores)) for s in scores]
            for weight, (_, value) in zip(weights, rows, strict=True):
                out[0, h, i] += weight / sum(weights) * value.double()
    return out


def assert_near(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def check(method, tokens, prompt, view, **shape):
    """One pass over the sequence against loops; queries of the prompt see all before them."""
    q, k, v = qkv(tokens, **shape)
    attention = MethodAttention(method, prompt, prompt or tokens)

    def everything(head, i):
        if i < prompt:
            return [(k[0, head, j], v[0, head, j]) for j in range(i + 1)]
        return view(q, k, v, head, i)

    found = attention(0, q, k, v, SCALING)
    assert_near(found, slow_attention(q, k, v, SCALING, everything))

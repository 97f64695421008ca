"""Methods that store tokens in fewer bytes, against a slow, direct reading of their rules."""

import math

import pytest
import torch

from gossamer.evaluation.peers.eviction import Expected, SnapKV, Streaming
from gossamer.evaluation.peers.kivi import Kivi
from gossamer.evaluation.peers.method import Exact, MethodAttention
from gossamer.evaluation.peers.mustafar import Mustafar
from gossamer.evaluation.peers.think import ThinKChannels
from gossamer.kv.mustafar import prune
from tests.evaluation.peers import SCALING, assert_near, check, qkv, slow_attention


def slow_quantized(group, bits):
    """The entries of one group after rounding, one by one."""
    low = float(torch.tensor(min(group)).half())
    scale = float(torch.tensor((max(group) - low) / (2**bits - 1)).half())
    return [low + scale * min(max(round((x - low) / scale), 0), 2**bits - 1) for x in group]


@pytest.mark.parametrize(("bits", "window"), [(4, 32), (2, 0), (16, 0)])
def test_kivi(bits, window):
    def view(q, k, v, head, i):
        rows = []
        for j in range(i + 1):
            key, value = k[0, head, j], v[0, head, j]
            if bits < 16 and j // 32 < i // 32 - window // 32:
                block = range(j // 32 * 32, j // 32 * 32 + 32)
                columns = [
                    slow_quantized([float(k[0, head, t, c]) for t in block], bits)[j % 32]
                    for c in range(32)
                ]
                key = torch.tensor(columns)
                value = torch.tensor(slow_quantized(value.tolist(), bits))
            rows.append((key, value))
        return rows

    # Few queries: every one of them quantizes its whole past again.
    tokens, first = 70, 66
    q, k, v = qkv(tokens, groups=1, kv_heads=1)
    found = MethodAttention(Kivi(bits, window), first, first)(0, q, k, v, SCALING)[:, :, first:]
    expected = slow_attention(
        q[:, :, first:], k, v, SCALING, lambda head, i: view(q, k, v, head, first + i)
    )
    assert_near(found, expected)


def test_kivi_rounds_a_group_by_hand():
    """2 bits of 0 .. 31: minimum 0, scale 31 / 3 = 10.336 in float16; 5 -> 0, 6 -> 1, 31 -> 3."""
    v = torch.arange(32.0).reshape(1, 1, 1, 32)
    found = Kivi(2).store_v(v)[0, 0, 0].tolist()
    scale = float(torch.tensor(31 / 3).half())
    assert [found[i] for i in (0, 5, 6, 31)] == pytest.approx([0, 0, scale, 3 * scale])
    k = v.transpose(2, 3).expand(1, 1, 32, 5)  # 32 tokens of a channel are the same group
    assert Kivi(2).store_k(k)[0, 0, :, 3].tolist() == found
    assert Kivi(4).store_v(torch.full((1, 1, 1, 32), 0.5)).unique().tolist() == [0.5]


@pytest.mark.parametrize("window", [1, 8])
def test_mustafar(window):
    def view(q, k, v, head, i):
        rows = []
        for j in range(i + 1):
            key, value = k[0, head, j], v[0, head, j]
            if i - j >= window:
                key, value = (prune(x, 0.5) for x in (key, value))
                assert int((key != 0).sum()) == 17  # one more than half of 32
            rows.append((key, value))
        return rows

    check(Mustafar(0.5, window), 20, 0, view)


@pytest.mark.parametrize(
    "method",
    [Exact(), Kivi(2, 0), Mustafar(0.7, 5), Streaming(0.3), SnapKV(0.5, 8), Expected(0.5),
     ThinKChannels(0.5, 8)],
)  # fmt: skip
def test_token_by_token_is_the_same_as_at_once(method):
    """Decoding remembers what it stored; a whole window computes it anew."""
    q, k, v = qkv(75)
    prompt = 40
    at_once = MethodAttention(method, prompt, prompt)(1, q, k, v, SCALING)
    attention = MethodAttention(method, prompt, prompt)
    parts = [attention(1, *(x[:, :, :prompt] for x in (q, k, v)), SCALING)]
    for i in range(prompt, 75):
        parts.append(attention(1, q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], SCALING))
    torch.testing.assert_close(torch.cat(parts, 2), at_once, rtol=1e-4, atol=1e-5)


def test_a_prompt_in_pieces_is_refused():
    q, k, v = qkv(6)
    with pytest.raises(ValueError, match="6 of 8 prompt tokens; must come in one piece"):
        MethodAttention(Exact(), 8, 8)(0, q, k, v, SCALING)
    with pytest.raises(ValueError, match="a batch of 2; must be one sequence"):
        MethodAttention(SnapKV(0.5), 6, 6)(0, *(torch.cat([x, x]) for x in (q, k, v)), SCALING)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Kivi(5), "bits is 5; must be one of 2, 3, 4, 8, 16"),
        (lambda: Kivi(4, 40), "window is 40; must be a multiple of 32"),
        (lambda: Kivi(4, -32), "window is -32; must be an integer >= 0"),
        (lambda: Mustafar(1.0), "sparsity is 1.0; must be >= 0 and < 1"),
        (lambda: Mustafar(0.5, 0), "window is 0; must be an integer >= 1"),
        (lambda: Streaming(0), "share is 0; must be above 0 and at most 1"),
        (lambda: Streaming(0.5, -1), "sinks is -1; must be an integer >= 0"),
        (lambda: SnapKV(1.5), "share is 1.5; must be above 0 and at most 1"),
        (lambda: SnapKV(0.5, 0), "window is 0; must be an integer >= 1"),
        (lambda: SnapKV(0.5, kernel=4), "kernel is 4; must be odd"),
        (lambda: Expected(math.nan), "share is nan; must be above 0 and at most 1"),
        (lambda: ThinKChannels(1.0), "pruned is 1.0; must be >= 0 and < 1"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert str(caught.value) == message

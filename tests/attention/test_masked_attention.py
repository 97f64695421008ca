"""The public function gives what attention under the dense mask gives, whichever candidate runs."""

import pytest
import torch

from gossamer import masked_attention
from gossamer import masks as m
from gossamer.attention import prepare
from gossamer.attention.candidates import Arguments
from gossamer.attention.plans import plan_of
from gossamer.attention.selector import candidates
from gossamer.ops import use_backend
from tests.attention.oracle import check, inputs, oracle
from tests.masks.examples import all_masks, combined

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = list(all_masks(65))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 63, 65, 1000])
def test_every_mask(n, dtype):
    q, k, v = inputs(1, 2, 1, n, n, 64, dtype)
    for name, mask in all_masks(n).items():
        expected = oracle(q, k, v, mask.dense(n, n))
        check(masked_attention(q, k, v, mask), expected, dtype)
        check(masked_attention(q, k, v, mask, return_lse=True), expected, dtype)
        assert name in NAMES


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["full", "causal", "sliding", "longformer", "dense"])
def test_every_candidate(name, dtype):
    """Also those that are not chosen."""
    n = 130
    q, k, v = inputs(2, 4, 4, n, n, 64, dtype)
    mask = prepare(all_masks(n)[name], n, n, "cpu")
    args = Arguments(q, k, v, None, 0.125, 0.0, False)
    expected = oracle(q, k, v, mask.mask.dense(n, n))
    listed = candidates(mask, args)
    assert {str(candidate) for candidate in listed} >= {"cpu 64x64", "cpu 32x32"}
    for candidate in listed:
        out, _ = plan_of(mask, candidate, args).run(q, k, v, None, 0.125, 0.0)
        check(out, expected, dtype)


@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_backends_by_name(backend):
    mask = m.Sliding(20, 3)
    q, k, v = inputs(1, 2, 2, 70, 70, 32)
    expected = oracle(q, k, v, mask.dense(70, 70))
    check(masked_attention(q, k, v, mask, backend=backend), expected, torch.float32)
    with use_backend(backend):
        check(masked_attention(q, k, v, mask, return_lse=True), expected, torch.float32)


@pytest.mark.parametrize("seed", range(6))
def test_combined_masks(seed):
    mask = combined(77, seed)
    q, k, v = inputs(2, 2, 1, 77, 77, 40)
    result = masked_attention(q, k, v, mask, return_lse=True)
    check(result, oracle(q, k, v, mask.dense(77, 77)), torch.float32)


def test_per_head_and_per_batch():
    heads = m.per_head([m.Causal(), m.Sliding(5, 5), m.Causal(), m.Full()])
    batch = m.per_batch([m.Documents([30, 70]), m.Documents([99, 1])])
    for mask in (heads, batch, heads & batch, m.per_head([m.Causal()] * 4)):
        q, k, v = inputs(2, 4, 2, 100, 100, 64)
        result = masked_attention(q, k, v, mask, return_lse=True)
        check(result, oracle(q, k, v, mask.dense(100, 100)), torch.float32)


def test_one_mask_per_head_for_one_head():
    mask = m.per_head([m.Causal()])
    q, k, v = inputs(1, 1, 1, 9, 9, 64)
    check(masked_attention(q, k, v, mask), oracle(q, k, v, mask.dense(9, 9)), torch.float32)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 500), (37, 200), (200, 37), (129, 64)])
def test_other_lengths_of_queries_and_keys(q_len, kv_len):
    for mask in (m.Causal(kv_len - q_len), m.Causal(), m.Sliding(16, 2), m.Full()):
        q, k, v = inputs(1, 6, 2, q_len, kv_len, 64)
        result = masked_attention(q, k, v, mask, return_lse=True)
        check(result, oracle(q, k, v, mask.dense(q_len, kv_len)), torch.float32)


@pytest.mark.parametrize("head_dim", [32, 72, 128, 256])
def test_head_dims(head_dim):
    mask = m.Streaming(4, 30)
    q, k, v = inputs(1, 2, 1, 90, 90, head_dim)
    check(masked_attention(q, k, v, mask), oracle(q, k, v, mask.dense(90, 90)), torch.float32)


@pytest.mark.parametrize("mask", [m.Full(), m.Causal(), m.Sliding(9, 9)], ids=str)
def test_scale_softcap_and_bias(mask):
    q, k, v = inputs(2, 4, 2, 70, 70, 64)
    seen = mask.dense(70, 70)
    bias = torch.randn(4, 1, 70)
    for options in (
        {"scale": 0.3},
        {"scale": -0.1},
        {"scale": 0.0},
        {"softcap": 3.0},
        {"bias": bias},
        {"bias": bias, "softcap": 2.0, "scale": 0.2},
    ):
        expected = oracle(q, k, v, seen, **options)
        check(masked_attention(q, k, v, mask, **options), expected, torch.float32)
        check(masked_attention(q, k, v, mask, return_lse=True, **options), expected, torch.float32)


def test_packed_documents():
    """Sequences of any length, one after the other in a batch of 1."""
    lengths = [5, 1, 64, 30]
    q, k, v = inputs(1, 4, 2, 100, 100, 64)
    out = masked_attention(q, k, v, m.Documents(lengths) & m.Causal())
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        alone = masked_attention(q[:, :, part], k[:, :, part], v[:, :, part], m.Causal())
        torch.testing.assert_close(out[:, :, part], alone, atol=1e-5, rtol=0)
        start += length


def test_packed_documents_with_more_keys_than_queries():
    mask = m.Documents([3, 1], key_lengths=[20, 9])
    q, k, v = inputs(1, 2, 2, 4, 29, 64)
    check(masked_attention(q, k, v, mask), oracle(q, k, v, mask.dense(4, 29)), torch.float32)


@pytest.mark.parametrize("mask", [m.Causal(-40), m.Full() & ~m.Full(), m.FirstKeys(0)], ids=str)
def test_queries_that_see_nothing(mask):
    q, k, v = inputs(1, 2, 2, 80, 80, 64)
    out, lse = masked_attention(q, k, v, mask, return_lse=True)
    blind = ~mask.dense(80, 80).any(-1).expand(1, 2, 80)
    assert blind.any()
    assert (out[blind] == 0).all()
    assert (lse[blind] == -torch.inf).all()
    check((out, lse), oracle(q, k, v, mask.dense(80, 80)), torch.float32)


@pytest.mark.parametrize(("batch", "q_len", "kv_len"), [(0, 5, 5), (1, 0, 5), (1, 0, 0)])
def test_nothing_to_do(batch, q_len, kv_len):
    q, k, v = inputs(batch, 2, 2, q_len, kv_len, 64, torch.float16)
    out, lse = masked_attention(q, k, v, m.Causal(), return_lse=True)
    assert out.shape == q.shape
    assert out.dtype == torch.float16
    assert lse.shape == q.shape[:3]


def test_no_keys():
    q, k, v = inputs(1, 2, 2, 5, 0, 64)
    for mask in (m.Causal(), prepare(m.Full(), 5, 0, "cpu")):
        out, lse = masked_attention(q, k, v, mask, return_lse=True)
        assert (out == 0).all()
        assert (lse == -torch.inf).all()


def test_strides():
    """[batch, length, heads, head_dim] without a copy; slices that begin anywhere."""
    q, k, v = torch.randn(3, 2, 60, 4, 72).transpose(2, 3)[..., 3:67]
    mask = m.Causal()
    check(masked_attention(q, k, v, mask), oracle(q, k, v, mask.dense(60, 60)), torch.float32)


def test_prepared_masks_of_many_kinds_of_calls():
    mask = prepare(m.Sliding.causal(20), 50, 50, "cpu")
    for batch, heads, dtype in [
        (1, 2, torch.float32),
        (3, 2, torch.float16),
        (1, 4, torch.float32),
    ]:
        q, k, v = inputs(batch, heads, 2, 50, 50, 64, dtype)
        for _ in range(2):
            result = masked_attention(q, k, v, mask)
            check(result, oracle(q, k, v, mask.mask.dense(50, 50)), dtype)
    assert len(mask.plans) == 3


def test_compiled():
    """With a prepared mask that has met such a call, it is a part of the graph."""
    q, k, v = inputs(1, 2, 2, 40, 40, 64)
    prepared = prepare(m.Sliding.causal(9), 40, 40, "cpu")
    with torch.no_grad():
        expected = masked_attention(q, k, v, prepared) * 2
        whole = torch.compile(
            lambda *x: masked_attention(*x, prepared) * 2, fullgraph=True, backend="eager"
        )
        torch.testing.assert_close(whole(q, k, v), expected, atol=0, rtol=0)
        parts = torch.compile(
            lambda *x: masked_attention(*x, m.Sliding.causal(9)) * 2, backend="eager"
        )
        torch.testing.assert_close(parts(q, k, v), expected, atol=1e-6, rtol=0)
    torch._dynamo.reset()

"""On a GPU: every candidate is right, a call is one launch that a CUDA graph can hold."""

import pytest
import torch

from gossamer import masked_attention
from gossamer import masks as m
from gossamer.attention import prepare
from gossamer.attention.candidates import Arguments
from gossamer.attention.plans import plan_of
from gossamer.attention.selector import candidates
from tests.attention.oracle import check, inputs, oracle
from tests.masks.examples import all_masks

pytestmark = pytest.mark.gpu


def on_gpu(*shape, dtype=torch.float16):
    return [x.cuda() for x in inputs(*shape, dtype)]


def test_a_dense_mask_on_the_cpu():
    q, k, v = on_gpu(1, 2, 2, 20, 20, 64)
    mask = m.DenseMask(torch.ones(20, 20, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"DenseMask is on cpu; must be on cuda:0"):
        masked_attention(q, k, v, mask)
    masked_attention(q, k, v, prepare(mask, 20, 20, "cuda"))


@pytest.mark.parametrize("mask", [m.Causal(), m.Longformer(32, 0)], ids=str)
def test_a_cuda_graph(mask):
    prepared = prepare(mask, 512, 512, "cuda")
    q, k, v = on_gpu(1, 8, 8, 512, 512, 64)
    masked_attention(q, k, v, prepared)  # chooses
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = masked_attention(q, k, v, prepared)
    for _ in range(3):
        for x in (q, k, v):
            x.normal_()
        graph.replay()
        check(out, oracle(q, k, v, mask.dense(512, 512, "cuda")), torch.float16)


def test_a_call_does_not_wait_for_the_gpu():
    prepared = prepare(m.Streaming(4, 64), 512, 512, "cuda")
    q, k, v = on_gpu(1, 8, 8, 512, 512, 64)
    masked_attention(q, k, v, prepared)
    torch.cuda.set_sync_debug_mode("error")
    try:
        masked_attention(q, k, v, prepared)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("width", "first"), [(64, 1), (68, 0), (72, 1)])
@pytest.mark.parametrize("mask", [m.Sliding(40, 4), m.Causal(), m.Full()], ids=str)
def test_tensors_that_do_not_lie_in_multiples_of_16_bytes(mask, width, first):
    """Every candidate takes them, for plans do not ask."""
    n = 300
    prepared = prepare(mask, n, n, "cuda")
    memory = torch.randn(3, 4 * n * width + 8, dtype=torch.float16, device="cuda")
    q, k, v = memory[:, first:][:, : 4 * n * width].view(3, 1, 4, n, width)[..., :64]
    want = oracle(q, k, v, mask.dense(n, n, "cuda"))
    args = Arguments(q, k, v, None, 0.125, 0.0, False)
    for candidate in candidates(prepared, args):
        out, _ = plan_of(prepared, candidate, args).run(q, k, v, None, 0.125, 0.0)
        check(out, want, torch.float16)
    check(masked_attention(q, k, v, prepared), want, torch.float16)
    masked_attention(q.clone(), k.clone(), v.clone(), prepared)
    assert len(prepared.plans) == 1


@pytest.mark.parametrize(("head_dim", "kv_heads"), [(64, 4), (128, 1)])
@pytest.mark.parametrize("name", ["full", "causal", "sliding", "longformer"])
def test_every_way(name, head_dim, kv_heads):
    """Also those that are not chosen, SDPA's kernels among them."""
    n = 300
    q, k, v = on_gpu(2, 4, kv_heads, n, n, head_dim)
    mask = prepare(all_masks(n)[name], n, n, "cuda")
    expected = oracle(q, k, v, mask.mask.dense(n, n, "cuda"))
    for lse in (False, True):
        args = Arguments(q, k, v, None, head_dim**-0.5, 0.0, lse)
        listed = candidates(mask, args)
        for candidate in listed:
            out, found = plan_of(mask, candidate, args).run(q, k, v, None, args.scale, 0.0)
            check((out, found) if lse else out, expected, torch.float16)
    if name in ("full", "causal"):
        assert "sdpa flash" in {str(candidate) for candidate in listed}


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (1, torch.float16),
        (65, torch.float16),
        (1000, torch.float16),
        (63, torch.bfloat16),
        (65, torch.float32),
    ],
    ids=str,
)
def test_every_mask(n, dtype):
    q, k, v = on_gpu(2, 4, 2, n, n, 64, dtype=dtype)
    for mask in all_masks(n).values():
        moved = mask.to("cuda")
        expected = oracle(q, k, v, mask.dense(n, n, "cuda"))
        check(masked_attention(q, k, v, moved), expected, dtype)
        check(masked_attention(q, k, v, moved, return_lse=True), expected, dtype)

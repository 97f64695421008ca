"""Several sequences in one call equal each of them alone, in float64."""

import math

import pytest
import torch
from torch import Tensor

from gossamer.attention.varlen import Segments, varlen_attention

CASES = {
    "prompts": ([5, 64, 1, 130], [5, 64, 1, 130]),
    "with a past": ([3, 33, 1], [40, 33, 77]),
    "one": ([17], [49]),
}
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def alone(q: Tensor, k: Tensor, v: Tensor, scale: float, sliding: int) -> Tensor:
    """[queries, heads, D] of one sequence, by the definition."""
    queries, keys = len(q), len(k)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    hidden = (distance < 0) | ((distance >= sliding) if sliding else False)
    weights = scores.masked_fill(hidden.to(scores.device), -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sliding", [0, 7, 1000])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("case", CASES)
def test_equals_each_alone(case, head_dim, heads, sliding, dtype, device):
    q_lens, kv_lens = CASES[case]
    total, keys = sum(q_lens), sum(kv_lens)
    # Rows with a gap behind them, as q, k and v come out of one GEMM.
    wide = torch.randn(total, heads[0] + 1, head_dim).to(device, dtype)
    q = wide[:, : heads[0]]
    k, v = (torch.randn(keys, heads[1], head_dim).to(device, dtype) for _ in range(2))
    segments = Segments.of(q_lens, kv_lens, device)
    out = varlen_attention(q, k, v, segments, scale=0.2, sliding=sliding)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    parts = zip(q.split(q_lens), k.split(kv_lens), v.split(kv_lens), strict=True)
    expected = torch.cat([alone(*(x.double() for x in part), 0.2, sliding) for part in parts])
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert (out.double() - expected).abs().max() < tolerance


def test_the_default_scale():
    q, k, v = (torch.randn(9, 2, 64) for _ in range(3))
    segments = Segments.of([9], [9], "cpu")
    out = varlen_attention(q, k, v, segments)
    assert (out - alone(q, k, v, 1 / 8, 0)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("q_lens", "kv_lens", "message"),
    [
        ([], [], "0 q_lens and 0 kv_lens"),
        ([1], [1, 2], "1 q_lens and 2 kv_lens"),
        ([3], [2], "3 queries and 2 keys; must be 1 to 2 queries"),
        ([0], [2], "0 queries and 2 keys"),
    ],
)
def test_bad_segments(q_lens, kv_lens, message):
    with pytest.raises(ValueError, match=message):
        Segments.of(q_lens, kv_lens, "cpu")


def test_segments_of_other_lengths():
    q = torch.randn(8, 2, 64)
    with pytest.raises(ValueError, match="8 queries, 8 keys and 8 values; must be 9, and 9"):
        varlen_attention(q, q, q, Segments.of([9], [9], "cpu"))

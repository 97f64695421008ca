"""Attention under a dense mask in float64, and how far from it a result may be."""

import torch

# Of the largest value; of lse, relative to 1 + |lse|.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def oracle(q, k, v, seen, *, scale=None, softcap=0.0, bias=None):
    """out and lse; seen: bool that expands to [batch, heads, q_len, kv_len]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = q.double() @ k.transpose(-1, -2) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).nan_to_num(0) @ v, scores.logsumexp(-1)


def check(result, expected, dtype):
    """out, or (out, lse)."""
    out, lse = result if isinstance(result, tuple) else (result, None)
    want, want_lse = expected
    assert out.dtype == dtype
    assert out.shape == want.shape
    limit = TOLERANCE[dtype]
    error = (out.double() - want).abs().amax() if out.numel() else 0
    assert error <= limit * max(1.0, want.abs().amax().item() if out.numel() else 0)
    if lse is not None:
        assert lse.dtype == torch.float32
        assert torch.equal(lse == -torch.inf, want_lse == -torch.inf)
        seen = want_lse > -torch.inf
        assert ((lse - want_lse)[seen].abs() <= limit * (1 + want_lse[seen].abs())).all()


def inputs(batch, heads, kv_heads, q_len, kv_len, head_dim, dtype=torch.float32):
    q = torch.randn(batch, heads, q_len, head_dim, dtype=dtype)
    k, v = torch.randn(2, batch, kv_heads, kv_len, head_dim, dtype=dtype)
    return q, k, v

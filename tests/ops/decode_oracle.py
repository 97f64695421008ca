"""What attention over a cache should give, in float64.

Rows come from blocks by their documented offsets (tests/ops/kv.py), queries go one by one, and the
window rule is that of `KVConfig`: no code is shared with the op.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.ops.decode import Call, Case, Pool

# Of norms, for each sequence; of lse, relative to 1 + |lse|.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def expected(call: Call) -> tuple[np.ndarray, np.ndarray]:
    """out and lse in float64, query by query."""
    case, q = call.case, call.q.double().cpu().numpy()
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for s, length in enumerate(call.lens.tolist()):
        for j in range(case.q_len):
            position = length - case.q_len + j
            first = max(position - case.sliding + 1, 0) if case.sliding else 0
            if position >= 0:
                tokens = np.arange(first, position + 1)
                k, v = _rows(call, s, position, tokens)
                out[s, j], lse[s, j] = _attention(case, q[s, j], k, v)
    return out, lse


def _rows(call: Call, s: int, position: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the query at this position sees of these tokens."""
    k, v = _read(call.main, call.case.page_size, s, tokens)
    if call.dense is not None:
        near = call.case.sees.sees_dense(torch.tensor(position), torch.from_numpy(tokens)).numpy()
        k[near], v[near] = _read(call.dense, call.case.page_size, s, tokens[near])
    return k, v


def _read(pool: Pool, size: int, s: int, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of K and V, NaN where the table names no page."""
    page = pool.table[s].cpu().numpy().astype(np.int64)[tokens // size]
    slots = page * size + tokens % size
    lost = (slots < 0) | (slots >= len(pool.k_rows))
    k, v = pool.k_rows[slots * ~lost], pool.v_rows[slots * ~lost]
    k[lost], v[lost] = np.nan, np.nan
    return k, v


def _attention(
    case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """q [heads, D] over k, v [tokens, kv_heads, D]."""
    scale = case.scale if case.scale is not None else case.k.head_dim**-0.5
    grouped = q.reshape(case.kv_heads, case.group, -1)
    scores = np.einsum("hgd,thd->hgt", grouped, k) * scale
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    out = np.einsum("hgt,thd->hgd", weights / total, v)
    return out.reshape(q.shape), (top + np.log(total)).reshape(-1)


def check(
    call: Call,
    got: tuple[Tensor, Tensor],
    rows: list[int] | None = None,
    tolerance: float | None = None,
) -> None:
    """Compare with the oracle, sequence by sequence (all, or these)."""
    out, lse = (x.double().cpu().numpy() for x in got)
    assert (got[0].dtype, got[1].dtype) == (call.q.dtype, torch.float32)
    assert got[0].is_contiguous()
    assert got[1].is_contiguous()
    want, want_lse = expected(call)
    assert (out.shape, lse.shape) == (want.shape, want_lse.shape)
    tolerance = TOLERANCE[call.q.dtype] if tolerance is None else tolerance
    for s in range(len(want)) if rows is None else rows:
        error, size = np.linalg.norm(out[s] - want[s]), np.linalg.norm(want[s])
        assert error <= tolerance * size, (
            f"sequence {s}: out is off by {error / size:.2e} ({call.case})"
        )
        none = np.isneginf(want_lse[s])
        assert np.array_equal(np.isneginf(lse[s]), none), f"sequence {s}: -inf in lse ({call.case})"
        assert not out[s][none].any(), f"sequence {s}: a query that sees nothing ({call.case})"
        off = np.abs(lse[s][~none] - want_lse[s][~none]) / (1 + np.abs(want_lse[s][~none]))
        assert (off <= tolerance).all(), (
            f"sequence {s}: lse is off by {off.max():.2e} ({call.case})"
        )


def bits(results: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The results as integers, so that torch.equal means the same bits, also of NaN."""
    out, lse = results
    return [
        out.view(torch.int32 if out.dtype == torch.float32 else torch.int16),
        lse.view(torch.int32),
    ]


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], rows: Any = slice(None)) -> bool:
    return all(torch.equal(x[rows], y[rows]) for x, y in zip(bits(a), bits(b), strict=True))

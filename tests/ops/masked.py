"""Calls of masked_attention from dense masks, and what they should give, in float64."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gossamer.ops import masked_attention
from gossamer.ops.backends import TRITON_INTERPRETED

# Of the largest values; of lse, relative to 1 + |lse|.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def tiles_of(seen: Tensor, tile_q: int, tile_k: int) -> dict[str, Tensor | None]:
    """The map of a dense mask, bool [batch, heads, q_len, kv_len], tile by tile."""
    batch, heads, q_len, kv_len = seen.shape
    offsets, columns, kinds, patterns = [0], [], [], {b"": 0}
    bits = [torch.zeros(tile_q, tile_k // 32, dtype=torch.int32)]
    for group in seen.cpu().reshape(batch * heads, q_len, kv_len):
        for q in range(0, q_len, tile_q):
            full, partial = [], []
            for k in range(0, kv_len, tile_k):
                part = group[q : q + tile_q, k : k + tile_k]
                if not part.any():
                    continue
                if part.all() and k + tile_k <= kv_len:
                    full.append((k // tile_k, -1))
                    continue
                tile = torch.zeros(tile_q, tile_k, dtype=torch.bool)
                tile[: part.shape[0], : part.shape[1]] = part
                key = bytes(tile.flatten().tolist())
                if key not in patterns:
                    patterns[key] = len(bits)
                    bits.append(_words(tile))
                partial.append((k // tile_k, patterns[key]))
            for column, kind in full + partial:
                columns.append(column)
                kinds.append(kind)
            offsets.append(len(columns))
    starts = torch.tensor(offsets, dtype=torch.int32)
    order = starts.diff().argsort(descending=True, stable=True).int()
    return {
        "offsets": starts,
        "tiles": torch.tensor([columns, kinds], dtype=torch.int32),
        "bits": torch.stack(bits),
        "order": order.view(batch, heads, -(-q_len // tile_q)),
        "work": None,
    }


def _words(tile: Tensor) -> Tensor:
    """Bit c of word w of a line is key 32 w + c."""
    lines = [
        [sum(1 << c for c in range(32) if line[w + c]) for w in range(0, len(line), 32)]
        for line in tile.tolist()
    ]
    return torch.tensor([[w - (1 << 32) * (w >> 31) for w in words] for words in lines]).int()


@dataclass(frozen=True, eq=False)
class Call:
    """Arguments of the op and the dense mask that they stand for."""

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor  # bool [1 or B, 1 or Hq, Nq, Nk]
    tile: tuple[int, int] = (64, 64)
    bias: Tensor | None = None
    scale: float = 0.125
    softcap: float = 0.0
    tiles: dict[str, Tensor | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tiles:
            object.__setattr__(self, "tiles", tiles_of(self.seen, *self.tile))

    def to(self, device: str) -> "Call":
        return replace(
            self,
            **{name: getattr(self, name).to(device) for name in ("q", "k", "v", "seen")},
            bias=None if self.bias is None else self.bias.to(device),
            tiles={n: t.to(device) if isinstance(t, Tensor) else t for n, t in self.tiles.items()},
        )

    def args(self) -> tuple[Any, ...]:
        lists = (self.tiles[name] for name in ("offsets", "tiles", "bits", "order", "work"))
        return self.q, self.k, self.v, *lists, self.bias, self.scale, self.softcap, True

    def attend(self, backend: str | None = None) -> tuple[Tensor, Tensor]:
        return masked_attention(*self.args(), backend=backend)


def make_call(
    seen: Tensor,
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Call:
    """Random q, k and v for a mask [(batch, (heads,)) q_len, kv_len]."""
    while seen.dim() < 4:
        seen = seen.unsqueeze(0)
    q = torch.randn(batch, heads, seen.shape[2], head_dim).to(dtype)
    shape = (batch, kv_heads or heads, seen.shape[3], head_dim)
    k, v = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    return Call(q, k, v, seen, scale=head_dim**-0.5, **options)


def expected(call: Call) -> tuple[Tensor, Tensor]:
    """out and lse in float64; no code is shared with the op."""
    q, k, v = (t.double().cpu() for t in (call.q, call.k, call.v))
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    seen = call.seen.cpu().expand(*q.shape[:3], k.shape[2])
    bias = None if call.bias is None else call.bias.double().cpu().expand(seen.shape)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h] @ k[b, h // group].T * call.scale
            if call.softcap:
                scores = call.softcap * torch.tanh(scores / call.softcap)
            if bias is not None:
                scores = scores + bias[b, h]
            scores[~seen[b, h]] = -torch.inf
            lse[b, h] = scores.logsumexp(-1)
            weights = torch.softmax(scores, -1).nan_to_num(0.0)
            out[b, h] = weights @ v[b, h // group]
    return out, lse


def check(call: Call, got: tuple[Tensor, Tensor]) -> None:
    """Compare with the oracle."""
    out, lse = got
    assert (out.shape, out.dtype) == (call.q.shape, call.q.dtype)
    assert (lse.shape, lse.dtype) == (call.q.shape[:3], torch.float32)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    out, lse = out.double().cpu(), lse.double().cpu()
    want, want_lse = expected(call)
    tolerance = TOLERANCE[call.q.dtype]
    if TRITON_INTERPRETED and call.q.dtype is torch.bfloat16:
        tolerance *= 2  # the interpreter truncates where hardware rounds
    none = torch.isneginf(want_lse)
    assert torch.equal(torch.isneginf(lse), none), "-inf in lse"
    assert not out[none].any(), "a query that sees nothing"
    off = (lse[~none] - want_lse[~none]).abs() / (1 + want_lse[~none].abs())
    assert (off <= tolerance).all(), f"lse is off by {off.max():.2e}"
    if out.numel():
        error = (out - want).abs()
        allowed = tolerance * (1 + want.abs())
        assert (error <= allowed).all(), f"out is off by {error.max():.2e}"

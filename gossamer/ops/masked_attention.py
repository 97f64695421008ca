"""Attention under a sparse mask that is given as a map of tiles."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.arguments import MaskedArguments, named
from gossamer.ops.masked_checks import check, check_map
from gossamer.ops.masked_reference import pack_bits, reference
from gossamer.ops.registry import Op


def masked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    tiles: Tensor,
    bits: Tensor,
    order: Tensor,
    work: Tensor | None,
    bias: Tensor | None,
    scale: float,
    softcap: float,
    with_lse: bool,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale q k + bias) v over the keys that the mask shows; also its logsumexp.

    q: [B, Hq, Nq, D]; k, v: [B, Hk, Nk, D], Hq a multiple of Hk; any strides, but 1 in the last
    dimension (GPUs copy what does not lie in multiples of 16 bytes); D a multiple of 8 from 32 to
    256; one dtype (float32, float16, bfloat16) and device.

    The mask is a map of tiles of tile_q (16 to 128) queries and tile_k (32 to 128) keys, powers of
    two. It is for batch batches and heads heads: 1, or B and Hq where the mask differs in them. A
    row of tiles is number (b * heads + h) * rows + r of batch * heads * rows, rows = ceil(Nq /
    tile_q). offsets: int32 [row numbers + 1], where each row's tiles start. tiles: int32 [2,
    tiles], the column of each (which tile of keys), in a row full ones before partial ones, and its
    kind: -1 for a full tile, else its pattern. bits: int32 [patterns, tile_q, tile_k / 32], bit c
    of word w of line r: whether query r of the tile sees key 32 w + c. A tile that reaches beyond
    Nk is partial. order: int32 [batch, heads, rows], every row number once; those with the most
    tiles first, so that work ends at the same time. work: None or int32 [items, 16] of
    `gossamer.masks.work`, the rows in pieces for the CUDA kernel; others take whole rows.

    bias: None or a floating tensor that expands to [B, Hq, Nq, Nk], added to the scaled score.
    softcap: c tanh(x / c) of the scaled score before that, 0 for none.

    Returns out [B, Hq, Nq, D] in q's dtype and lse float32 [B, Hq, Nq] (natural logarithm), None
    without with_lse. A row that sees nothing gives zeros and -inf. What is NaN or infinite in v may
    reach every query of a tile that shows it to one of them. Raises TypeError or ValueError; the
    map's numbers on a GPU are not looked at by the host.
    """
    result: tuple[Tensor, Tensor | None] = _op(
        *(q, k, v, offsets, tiles, bits, order, work, bias, scale, softcap, with_lse),
        backend=backend,
    )
    return result


@named(MaskedArguments)
def _fake(a: MaskedArguments) -> tuple[Tensor, Tensor | None]:
    lse = a.q.new_empty(a.q.shape[:3], dtype=torch.float32) if a.with_lse else None
    return a.q.new_empty(a.q.shape), lse


_CUDA_DTYPES = (torch.float16, torch.bfloat16)
CUDA_TILES = ((32, 32), (64, 32), (64, 64), (128, 64))
_CUDA_BITS = tuple((q, k // 32) for q, k in CUDA_TILES)  # shapes of patterns
TUNED = "fp16 and bf16, head_dim 64 and 128, no bias, tiles of " + ", ".join(
    f"{q}x{k}" for q, k in CUDA_TILES
)


@named(MaskedArguments)
def _limits(a: MaskedArguments) -> str | None:
    """Why the CUDA kernel does not take these arguments."""
    known = a.q.dtype in _CUDA_DTYPES and a.q.size(3) in (64, 128) and a.bias is None
    return None if known and a.bits.shape[1:] in _CUDA_BITS else f"the CUDA kernel takes {TUNED}"


def _example(make: Callable[..., Tensor]) -> tuple[Any, ...]:
    """A causal mask over 100 tokens: two rows of tiles, of one partial tile and of two."""
    q = make(1, 2, 100, 64)
    seen = torch.zeros(128, 128, dtype=torch.bool)
    seen[:100, :100] = torch.ones(100, 100).tril().bool()
    bits = pack_bits(torch.stack([seen[:64, :64], seen[64:, 64:]]))
    offsets, tiles, order = (
        torch.tensor(n, dtype=torch.int32) for n in ([0, 1, 3], [[0, 0, 1], [0, -1, 1]], [[[1, 0]]])
    )
    map_ = (t.to(q.device) for t in (offsets, tiles, bits, order))
    return q, make(1, 1, 100, 64), make(1, 1, 100, 64), *map_, None, None, 0.125, 0.0, True


_op = Op(
    "masked_attention",
    reference=reference,
    check=check,
    check_values=check_map,
    fake=_fake,
    example=_example,
    limits=_limits,
    tuned=TUNED,
    # Of outputs around 0.3: K and V in the queries' type, weights rounded to it.
    tolerance={torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3},
    triton="gossamer.kernels.masked_attention:masked_attention",
)

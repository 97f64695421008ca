"""What a model computes over a compressed cache, from the definition: plain torch, no pages.

The whole sequence goes through the decoder at once. In each layer, K and V are there twice, as they
are and as they come back from blocks; for each query the rule of positions says which of the two it
sees, and its softmax is in float64.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.kv import BlockStore, Calibration, KVConfig
from gossamer.kv.bases import Basis
from gossamer.kv.layouts import Coded, Side
from gossamer.kv.policies import POLICIES, Ranking
from gossamer.masks import Mask
from gossamer.models import Decoder, on_rotated
from gossamer.ops.kv_block import BLOCK_TOKENS


@torch.inference_mode()
def oracle_logits(
    decoder: Decoder,
    kv: KVConfig,
    ids: list[int],
    prompt: int,
    calibration: Calibration | None,
    mask: Mask | None = None,
) -> Tensor:
    """[tokens, vocab] of a sequence whose first `prompt` tokens were its prompt.

    decoder: with V's basis folded in where the cache has one. mask: what the prompt's tokens see.
    """
    positions = torch.arange(len(ids))
    query, key = positions[:, None], positions[None]
    dense = kv.sees_dense(query, key)
    if kv.prefill == "dense":
        dense = dense | (query < prompt)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sides = {"k": kv.k, "v": kv.v}
        found = {n: calibration and calibration.weights(n, side) for n, side in sides.items()}
        weights = {n: None if x is None else x[layer] for n, x in found.items()}
        if calibration is not None:
            q, k = in_basis(q, k, calibration.basis("k", kv.k), layer)
        seen = (key <= query) & _slides(decoder, layer, query - key)
        if mask is not None:
            seen &= mask.dense(len(ids), len(ids))[0, 0] | (query >= prompt)
        keys = (k, as_stored(kv.k, k, weights["k"]))
        values = (v, as_stored(kv.v, v, weights["v"]))
        return _attention(q, keys, values, seen, dense)

    return decoder.logits(decoder.forward(torch.tensor(ids), positions, on_rotated(attend)))


def in_basis(q: Tensor, k: Tensor, basis: Basis | None, layer: int) -> tuple[Tensor, Tensor]:
    """q [T, Hq, D] and k [T, Hk, D] as the cache has them, computed in float64."""
    if basis is None:
        return q, k
    mean = 0.0 if basis.mean is None else basis.mean[layer].double()
    turned_k = torch.einsum("thd,hdc->thc", k.double() - mean, basis.matrix[layer].double())
    queries = q.double().unflatten(1, (k.shape[1], -1))
    turned_q = torch.einsum("thgd,hcd->thgc", queries, basis.inverse[layer]).flatten(1, 2)
    return turned_q.to(q.dtype), turned_k.to(k.dtype)


def _slides(decoder: Decoder, layer: int, distance: Tensor) -> Tensor:
    sliding = decoder.config.sliding[layer]
    return distance < sliding if sliding else torch.ones_like(distance, dtype=torch.bool)


def as_stored(side: Side, x: Tensor, weights: Tensor | None) -> Tensor:
    """Rows [tokens, heads, D] as they come back from blocks; NaN where the block is not complete.

    No query may see those compressed, so a NaN in the result is a mistake of the oracle's rule.
    """
    tokens, heads, head_dim = x.shape
    blocks = tokens // BLOCK_TOKENS
    store = BlockStore.allocate(side, blocks, heads, head_dim)
    slots = torch.arange(blocks * BLOCK_TOKENS)
    rows = x[: len(slots)].contiguous()
    coded = isinstance(side.layout, Coded)
    ranking = Ranking(weights) if coded else POLICIES[side.policy].rank(rows, weights)
    store.write(rows, slots, ranking)
    rest = torch.full((tokens - len(slots), heads, head_dim), float("nan"))
    return torch.cat([store.read(slots, torch.float32), rest])


def _attention(
    q: Tensor, k: tuple[Tensor, Tensor], v: tuple[Tensor, Tensor], seen: Tensor, dense: Tensor
) -> Tensor:
    """q [T, Hq, D]; k, v: dense and stored [T, Hk, D]; seen, dense: [queries, keys]."""
    group = q.shape[1] // k[0].shape[1]
    queries = q.double().unflatten(1, (-1, group))  # [T, Hk, G, D]
    either: list[Any] = []
    for rows in k:
        scores = torch.einsum("qhgd,khd->hgqk", queries, rows.double())
        either.append(scores * q.shape[-1] ** -0.5)
    scores = torch.where(dense, *either).masked_fill(~seen, -torch.inf)
    weights = scores.softmax(-1)
    out = torch.zeros_like(queries)
    for rows, part in zip(v, (dense & seen, ~dense & seen), strict=True):
        used = rows.double().nan_to_num()  # zero times NaN is NaN; those weights are zero
        out += torch.einsum("hgqk,khd->qhgd", weights.masked_fill(~part, 0), used)
    return out.flatten(1, 2).to(q.dtype)

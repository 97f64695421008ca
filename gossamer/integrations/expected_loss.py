"""What caches are expected to cost a model: how far its predictions move with K and V stored.

The divergence of the model's predictions from those with dense K and V, KL(dense || stored), is the
rise in NLL on text that the model itself could have written. It is never negative, so a thousand
tokens tell more than the change in NLL of many thousands, where most of the change is chance. On
text of others the rise is larger: OTHERS times the divergence is what is expected.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.integrations.transformers import attention_function, causal_attention, kv_shape
from gossamer.integrations.windows import Window
from gossamer.kv import Calibration, KVConfig
from gossamer.kv.auto import possible
from gossamer.kv.bases import QueryKeyTurn, turn
from gossamer.kv.ladder import LADDER, Loss
from gossamer.kv.round_trip import through_blocks
from gossamer.ops.kv_block import BLOCK_TOKENS

ROWS = 256  # of logits [rows, vocabulary] in float32 at a time
# SmolLM2 on WikiText-2's test text: 1.4 (KIVI), 1.6 (int4), 2.4, 2.1 and 2.4 (coded rows) times.
OTHERS = 2.0
CERTAIN = 1.96  # standard errors of an interval of 95%


@torch.no_grad()
def expected_losses(
    model: Any,
    windows: Iterable[Sequence[int] | Tensor],
    calibration: Calibration,
    *,
    specs: Sequence[str] = LADDER,
    start: int = 0,
    on_window: Callable[[int], None] | None = None,
) -> dict[str, Loss]:
    """Of each cache that the model's heads can have, over all tokens of the windows.

    windows: token ids; what is beyond a multiple of 32 tokens is left out. start: the position that
    they begin at. on_window: called with the tokens of each window that is done with a cache.
    Losses that are not finite are infinite.
    """
    shape = kv_shape(model)
    found = {s: possible(s, calibration, shape, torch.float16) for s in specs}
    caches = {spec: config for spec, config in found.items() if config is not None}
    parts: dict[str, list[Tensor]] = {spec: [] for spec in caches}
    for window in windows:
        ids = torch.as_tensor(window, dtype=torch.long, device=model.device)
        ids = ids[: len(ids) // BLOCK_TOKENS * BLOCK_TOKENS]
        placed = Window(ids, start)
        exact = _logits(model, placed, causal_attention)
        for spec, config in caches.items():
            stored = _logits(model, placed, StoredAttention(config, calibration, len(ids)))
            parts[spec].append(divergence(exact, stored))
            if on_window is not None:
                on_window(len(ids))
    return {spec: _loss(torch.cat(values)) for spec, values in parts.items() if values}


def divergence(exact: Tensor, other: Tensor) -> Tensor:
    """KL of predictions by logits [T, vocabulary], [T] in float32 on the CPU."""
    found = []
    for a, b in zip(exact.split(ROWS), other.split(ROWS), strict=True):
        p, q = a.float().log_softmax(-1), b.float().log_softmax(-1)
        found.append((p.exp() * (p - q)).sum(-1).cpu())
    return torch.cat(found)


def _loss(values: Tensor) -> Loss:
    mean = OTHERS * float(values.mean())
    if not math.isfinite(mean):  # a cache that breaks the model altogether
        return Loss(BROKEN, 0.0)
    half = (
        OTHERS * CERTAIN * float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    )
    return Loss(round(max(0.0, mean), 6), round(half, 6))


BROKEN = 1e9  # a number that JSON has


def _logits(model: Any, window: Window, attention: Callable[..., Tensor]) -> Tensor:
    with attention_function(model, attention):
        logits: Tensor = model(**window.inputs, use_cache=False).logits[0]
    return logits


class StoredAttention:
    """An AttentionFunction in which far keys and values are read as a cache stores them."""

    def __init__(self, config: KVConfig, calibration: Calibration, tokens: int) -> None:
        self.config, self.calibration = config, calibration
        at = torch.arange(tokens)
        self._near, self._future = config.sees_dense(at[:, None], at), at > at[:, None]
        self._bases = {n: calibration.basis(n, s) for n, s in self._sides.items()}
        self._weights = {n: calibration.weights(n, s) for n, s in self._sides.items()}

    @property
    def _sides(self) -> Mapping[str, Any]:
        return {"k": self.config.k, "v": self.config.v}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        near, future = self._near.to(q.device), self._future.to(q.device)
        groups = q.shape[1] // k.shape[1]
        queries, keys, far_keys = self._keys(layer, q, k, groups)
        queries = queries.unflatten(0, (-1, groups)) * scaling  # [KV heads, group, T, D]
        scores = torch.where(
            near, queries @ keys.unsqueeze(1).mT, queries @ far_keys.unsqueeze(1).mT
        )
        p = scores.masked_fill(future, -math.inf).softmax(-1)
        dense, far = v[0].float().unsqueeze(1), self._values(layer, v[0]).unsqueeze(1)
        out = p.masked_fill(~near, 0) @ dense + p.masked_fill(near, 0) @ far
        return out.flatten(0, 1).unsqueeze(0).to(q.dtype)

    def _keys(self, layer: int, q: Tensor, k: Tensor, groups: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [Hq, T, D], keys and stored keys [Hk, T, D] in the basis of K, in float32."""
        rows, keys = q[0].transpose(0, 1), k[0].transpose(0, 1)
        basis = self._bases["k"]
        if basis is not None:
            here = basis.part(slice(layer, layer + 1), slice(None))
            rows, keys = QueryKeyTurn(here, groups, q.dtype, q.device)(0, rows, keys)
        stored = through_blocks(self.config.k, keys, self._weight("k", layer, q.device))
        queries, near, far = (x.float().transpose(0, 1) for x in (rows, keys, stored))
        return queries, near, far

    def _values(self, layer: int, v: Tensor) -> Tensor:
        """Stored values [Hk, T, D] as they were, in float32."""
        basis, weight = self._bases["v"], self._weight("v", layer, v.device)
        if basis is None:
            return through_blocks(self.config.v, v.transpose(0, 1), weight).transpose(0, 1)
        here = basis.part(slice(layer, layer + 1), slice(None)).rounded(v.dtype)
        rows = turn(v, here.matrix[0]).transpose(0, 1)
        return turn(through_blocks(self.config.v, rows, weight).transpose(0, 1), here.inverse[0])

    def _weight(self, name: str, layer: int, device: torch.device) -> Tensor | None:
        weights = self._weights[name]
        return None if weights is None else weights[layer].to(device, torch.float32)

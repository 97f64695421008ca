"""A cheap look at every candidate: its error in attention outputs of one window of text.

The model runs once. Layer by layer, keys and values after RoPE are packed and unpacked by the
engine's own ops, and some queries attend to them: with only K compressed, or only V. An error is
the square of the change in attention's outputs relative to theirs, the mean over layers. There is
one without and one with a sink: the first tokens get much attention, and their keys stand out.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.evaluation.frontier.candidates import Candidates, side_spec
from gossamer.evaluation.store import Point, Store
from gossamer.evaluation.tasks import Score
from gossamer.kv import BlockStore, Calibration, KVConfig, Side, turn_q_and_k
from gossamer.kv.paged_cache import attend_masked
from gossamer.kv.policies import POLICIES
from gossamer.masks import Causal, Sliding
from gossamer.models import Decoder
from gossamer.ops.kv_block import BLOCK_TOKENS

QUERIES = 32  # spread over the window, in all heads
SINKS = (0, BLOCK_TOKENS)
LAYERS = 16  # at most, spread over the model; every other one of a model of 30 orders sides alike
LEAST_TOKENS = 4 * BLOCK_TOKENS  # the first queries see dense blocks only
TASK, KIND, EXAMPLE = "screening", "error", "errors"  # names in a results file


@dataclass(frozen=True)
class Errors:
    """Relative squared errors of the candidates of each side."""

    k: dict[Side, float]
    v: dict[Side, float]


@torch.inference_mode()
def screen(
    decoder: Decoder,
    ids: Sequence[int],
    candidates: Candidates,
    calibration: Calibration | None = None,
    on_layer: Callable[[], None] = lambda: None,
) -> dict[int, Errors]:
    """Errors on the tokens `ids`, in whole blocks, for each of SINKS. ValueError for too few."""
    tokens = len(ids) // BLOCK_TOKENS * BLOCK_TOKENS
    if tokens < LEAST_TOKENS:
        raise ValueError(f"{len(ids)} tokens to screen on; must be at least {LEAST_TOKENS}")
    positions = torch.arange(tokens, device=decoder.device)
    recorder = Screen(decoder, candidates, calibration, on_layer)
    decoder.forward(torch.tensor(ids[:tokens], device=decoder.device), positions, recorder)
    return recorder.errors()


@dataclass
class Screen:
    """What a decoder calls for attention: exact attention, which also measures every candidate."""

    decoder: Decoder
    candidates: Candidates
    calibration: Calibration | None
    on_layer: Callable[[], None]
    _sums: dict[tuple[int, str, Side], float] = field(default_factory=dict)
    _layers: int = 0

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sliding, scale = self.decoder.config.sliding[layer], q.shape[-1] ** -0.5
        mask = Sliding.causal(sliding - 1) if sliding else Causal()
        out = attend_masked(q, k, v, mask, scale)
        if layer in chosen_layers(self.decoder.config.layers):
            self._look(layer, View.of(q, k, v, scale, sliding))
            self._layers += 1
            self.on_layer()
        return out

    def _look(self, layer: int, view: "View") -> None:
        for name, sides, error in (
            ("k", self.candidates.k, view.error_of_keys),
            ("v", self.candidates.v, view.error_of_values),
        ):
            for side in sides:
                found = error(side, *self._calibrated(name, side, layer))
                for sink, value in zip(SINKS, found, strict=True):
                    key = (sink, name, side)
                    self._sums[key] = self._sums.get(key, 0.0) + value

    def _calibrated(self, name: str, side: Side, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Basis and rank weights of a side in a layer; None for none."""
        if self.calibration is None:
            return None, None
        basis = self.calibration.k_basis if name == "k" else self.calibration.v_basis
        weights = self.calibration.rank_weights(side) if name == "k" else None
        device = self.decoder.device
        return (
            basis[layer].to(device) if side.basis == "pca" else None,
            None if weights is None else weights[layer].to(device),
        )

    def errors(self) -> dict[int, Errors]:
        found = {sink: Errors({}, {}) for sink in SINKS}
        for (sink, name, side), total in self._sums.items():
            errors = found[sink].k if name == "k" else found[sink].v
            errors[side] = total / self._layers
        return found


def chosen_layers(layers: int) -> list[int]:
    """At most LAYERS of them, from the first to the last."""
    if layers <= LAYERS:
        return list(range(layers))
    return sorted({round(i * (layers - 1) / (LAYERS - 1)) for i in range(LAYERS)})


@dataclass(frozen=True, eq=False)
class View:
    """Some queries of one layer and what they see, heads first, in float32.

    q: [KV heads, queries, D], scaled, the query heads of a KV head one after the other. rows_k,
    rows_v: [tokens, KV heads, D] as they are to be packed. scores: [KV heads, queries, tokens],
    -inf where a query does not see a key. near: where it sees it dense, or not at all, for each of
    SINKS. out: what attention gives.
    """

    q: Tensor
    rows_k: Tensor
    rows_v: Tensor
    scores: Tensor
    near: list[Tensor]
    out: Tensor

    @classmethod
    def of(cls, q: Tensor, k: Tensor, v: Tensor, scale: float, sliding: int) -> "View":
        tokens, kv_heads = k.shape[:2]
        first = 2 * BLOCK_TOKENS  # the first token that sees a stored block
        chosen = torch.linspace(first, tokens - 1, QUERIES, device=q.device).round().long()
        groups = q.shape[1] // kv_heads
        some = q[chosen].float() * scale  # [queries, heads, D]
        some = some.unflatten(1, (kv_heads, groups)).permute(1, 2, 0, 3).flatten(1, 2)
        at, key = chosen.repeat(groups)[:, None], torch.arange(tokens, device=q.device)
        unseen = key > at
        if sliding:
            unseen |= key <= at - sliding
        scores = some @ k.float().permute(1, 2, 0)
        scores = scores.masked_fill(unseen, -math.inf)
        out = scores.softmax(-1) @ v.float().transpose(0, 1)
        near = [KVConfig(sink=sink).sees_dense(at, key) | unseen for sink in SINKS]
        return cls(some, k, v, scores, near, out)

    def error_of_keys(
        self, side: Side, basis: Tensor | None, weights: Tensor | None
    ) -> list[float]:
        """With only K stored as `side`."""
        q, rows = self.q, self.rows_k
        if basis is not None:
            # The queries of a KV head are one long sequence of a single head here.
            q, turned = turn_q_and_k(q, rows.transpose(0, 1), basis)
            rows = turned.transpose(0, 1)
        stored = through_blocks(side, rows, weights)
        far = q @ stored.permute(1, 2, 0)
        mixed = (torch.where(near, self.scores, far) for near in self.near)
        values = self.rows_v.float().transpose(0, 1)
        return [self._relative(scores.softmax(-1) @ values - self.out) for scores in mixed]

    def error_of_values(
        self, side: Side, basis: Tensor | None, weights: Tensor | None
    ) -> list[float]:
        """With only V stored as `side`; in its basis, which leaves lengths as they are."""
        rows = self.rows_v
        if basis is not None:
            rows = (rows.transpose(0, 1) @ basis.to(rows.dtype)).transpose(0, 1)
        difference = through_blocks(side, rows, weights) - rows.float()
        seen = self.scores.softmax(-1)
        return [
            self._relative(seen.masked_fill(near, 0.0) @ difference.transpose(0, 1))
            for near in self.near
        ]

    def _relative(self, difference: Tensor) -> float:
        return float(difference.square().sum() / self.out.square().sum().clamp_min(1e-30))


def through_blocks(side: Side, rows: Tensor, weights: Tensor | None) -> Tensor:
    """Rows [tokens, heads, D] after a round through blocks, float32."""
    tokens, heads, head_dim = rows.shape
    rows = rows.contiguous()
    store = BlockStore.allocate(side, tokens // BLOCK_TOKENS, heads, head_dim, str(rows.device))
    slots = torch.arange(tokens, device=rows.device)
    store.write(rows, slots, POLICIES[side.policy].rank(rows, weights))
    return store.read(slots, torch.float32)


# ---- screening that a results file has -----------------------------------------------------------


def kept_screening(
    store: Store,
    point: Point,
    candidates: Candidates,
    run: Callable[[Candidates], dict[int, Errors]],
) -> dict[int, Errors]:
    """What the results file has of these candidates, or else what `run` finds, which it then has.

    So a search that goes on does not screen again.
    """
    score = store.entry(point).scores.get(EXAMPLE)
    if score is not None:
        kept = {int(sink): _errors(saved, candidates) for sink, saved in score.meta.items()}
        found = {sink: errors for sink, errors in kept.items() if errors is not None}
        if found and found.keys() == kept.keys():
            return found
    fresh = run(candidates)
    meta = {str(s): {"k": _by_spec(e.k), "v": _by_spec(e.v)} for s, e in fresh.items()}
    store.add_score(point, Score(EXAMPLE, 0.0, meta=meta))
    store.add_end(point)
    return fresh


def _errors(kept: Mapping[str, Mapping[str, float]], candidates: Candidates) -> Errors | None:
    """None where a candidate is missing."""
    k, v = _found(kept["k"], candidates.k), _found(kept["v"], candidates.v)
    return None if k is None or v is None else Errors(k, v)


def _by_spec(errors: Mapping[Side, float]) -> dict[str, float]:
    return {side_spec(side): error for side, error in errors.items()}


def _found(kept: Mapping[str, float], sides: Sequence[Side]) -> dict[Side, float] | None:
    specs = {side: side_spec(side) for side in sides}
    if not all(spec in kept for spec in specs.values()):
        return None
    return {side: kept[spec] for side, spec in specs.items()}

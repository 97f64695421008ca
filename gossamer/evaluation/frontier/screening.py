"""A cheap look at every candidate: its error in attention outputs of one window of text.

The model runs once. Layer by layer, keys and values after RoPE are packed and unpacked by the
engine's own ops, and some queries attend to them: with only K compressed, or only V. An error is
the square of the change in attention's outputs relative to theirs, the mean over layers. There is
one without and one with a sink: the first tokens get much attention, and their keys stand out.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.evaluation.frontier.candidates import Candidates, side_spec
from gossamer.evaluation.frontier.view import SINKS, Rows, View
from gossamer.evaluation.store import Point, Store
from gossamer.evaluation.tasks import Score
from gossamer.kv import Calibration, Side
from gossamer.kv.bases import Basis
from gossamer.kv.layouts import Coded
from gossamer.kv.paged_cache import attend_masked
from gossamer.masks import Causal, Sliding
from gossamer.models import Decoder, on_rotated
from gossamer.ops.kv_block import BLOCK_TOKENS

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
    tokens_of = torch.tensor(ids[:tokens], device=decoder.device)
    decoder.forward(tokens_of, positions, on_rotated(recorder))
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
            self._look(layer, View(q, k, v, scale, sliding))
            self._layers += 1
            self.on_layer()
        return out

    def _look(self, layer: int, view: View) -> None:
        for name, sides, rows_in in (
            ("k", self.candidates.k, view.keys),
            ("v", self.candidates.v, view.values),
        ):
            turned: dict[Hashable, Rows] = {}
            for side in sides:
                basis = side.layout if isinstance(side.layout, Coded) else side.basis
                if basis not in turned:
                    turned[basis] = rows_in(self._basis(name, side, layer))
                found = turned[basis].errors(side, self._weights(name, side, layer))
                for sink, value in zip(SINKS, found, strict=True):
                    key = (sink, name, side)
                    self._sums[key] = self._sums.get(key, 0.0) + value

    def _basis(self, name: str, side: Side, layer: int) -> Basis | None:
        """Of one layer."""
        basis = None if self.calibration is None else self.calibration.basis(name, side)
        return None if basis is None else basis.part(slice(layer, layer + 1))

    def _weights(self, name: str, side: Side, layer: int) -> Tensor | None:
        weights = None if self.calibration is None else self.calibration.weights(name, side)
        return None if weights is None else weights[layer].to(self.decoder.device)

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

"""Screening that is kept in a results file, so that a run that goes on does not repeat it."""

from collections.abc import Callable, Mapping, Sequence

from gossamer.evaluation.frontier.candidates import Candidates, side_words
from gossamer.evaluation.frontier.screening import Errors
from gossamer.evaluation.store import Point, Store
from gossamer.evaluation.tasks import Score
from gossamer.kv import Side

TASK, KIND, EXAMPLE = "screening", "error", "errors"


def kept_screening(
    store: Store,
    point: Point,
    candidates: Candidates,
    run: Callable[[Candidates], dict[int, Errors]],
) -> dict[int, Errors]:
    """What the file has of these candidates, or else what `run` finds and the file then has."""
    score = store.entry(point).scores.get(EXAMPLE)
    if score is not None:
        kept = {int(sink): _errors(words, candidates) for sink, words in score.meta.items()}
        found = {sink: errors for sink, errors in kept.items() if errors is not None}
        if found and found.keys() == kept.keys():
            return found
    fresh = run(candidates)
    meta = {str(s): {"k": _in_words(e.k), "v": _in_words(e.v)} for s, e in fresh.items()}
    store.add_score(point, Score(EXAMPLE, 0.0, meta=meta))
    store.add_end(point)
    return fresh


def _errors(kept: Mapping[str, Mapping[str, float]], candidates: Candidates) -> Errors | None:
    """None where a candidate is missing."""
    k, v = _found(kept["k"], candidates.k), _found(kept["v"], candidates.v)
    return None if k is None or v is None else Errors(k, v)


def _in_words(errors: Mapping[Side, float]) -> dict[str, float]:
    return {side_words(side): error for side, error in errors.items()}


def _found(kept: Mapping[str, float], sides: Sequence[Side]) -> dict[Side, float] | None:
    words = {side: side_words(side) for side in sides}
    if not all(word in kept for word in words.values()):
        return None
    return {side: kept[word] for side, word in words.items()}

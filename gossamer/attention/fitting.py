"""Coefficients from measured times, and how well they choose at points they were not fitted on."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossamer.attention.candidates import Call, Candidate
from gossamer.attention.cost import Model, TileFacts, features, group_of

Floats = NDArray[np.float64]

FOLDS = 4
LEAST_SAMPLES = 2  # one says nothing about a group
DOUBT = 2  # a launch of which little is known, against the shortest call of all


@dataclass(frozen=True, eq=False)
class Sample:
    """A candidate that was timed. point: mask and shape, within which candidates compete."""

    point: str
    candidate: Candidate
    call: Call
    facts: TileFacts
    microseconds: float


@dataclass(frozen=True)
class Regret:
    """How much longer the choice takes than the fastest candidate, as a share, at each point."""

    shares: dict[str, float]

    @property
    def median(self) -> float:
        return float(np.median(list(self.shares.values()))) if self.shares else 0.0

    @property
    def worst(self) -> float:
        return max(self.shares.values(), default=0.0)

    def __str__(self) -> str:
        return (
            f"regret at {len(self.shares)} points: median {self.median:.1%}, worst {self.worst:.1%}"
        )


def fit(samples: Iterable[Sample], places: int) -> Model:
    """Non-negative least squares of relative errors, for each group."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[group_of(sample.candidate, sample.call.head_dim)].append(sample)
    shortest = min((s.microseconds for members in groups.values() for s in members), default=1.0)
    found = {}
    for name, members in sorted(groups.items()):
        if len(members) < LEAST_SAMPLES:
            continue
        rows = [features(s.candidate, s.call, s.facts, places) for s in members]
        times = [s.microseconds for s in members]
        if len(rows) < 2 * len(rows[0]):
            # Few: without this, calls smaller than all of them could look as if they cost nothing.
            rows.append([1.0] + [0.0] * (len(rows[0]) - 1))
            times.append(DOUBT * shortest)
        found[name] = tuple(float(c) for c in fit_relative(np.array(rows), np.array(times)))
    return Model(places, found)


def regret(samples: Iterable[Sample], model: Model) -> Regret:
    """Of what the model chooses among the samples of each point."""
    points: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        points[sample.point].append(sample)
    shares = {}
    for point, members in points.items():
        chosen = chosen_of(members, model)
        best = min(s.microseconds for s in members)
        shares[point] = chosen.microseconds / best - 1
    return Regret(shares)


def chosen_of(members: Sequence[Sample], model: Model) -> Sample:
    """The sample that looks cheapest; what is not known looks worst."""
    return min(members, key=lambda s: model.rank(s.candidate, s.call, s.facts))


def held_out(
    samples: Sequence[Sample], places: int, fold: Callable[[str], object] | None = None
) -> Regret:
    """Regret at every point, by coefficients fitted without the fold that the point is in.

    fold: of a point's name; by default one of FOLDS, by chance.
    """
    fold_of = fold or _by_chance
    shares: dict[str, float] = {}
    for one in {fold_of(s.point) for s in samples}:
        inside = [s for s in samples if fold_of(s.point) != one]
        outside = [s for s in samples if fold_of(s.point) == one]
        if inside:
            shares |= regret(outside, fit(inside, places)).shares
    return Regret(shares)


def by_mask(point: str) -> str:
    """A fold for each mask: it is judged by coefficients of other masks alone."""
    return point.split(maxsplit=1)[0]


def _by_chance(point: str) -> int:
    return hashlib.sha256(point.encode()).digest()[0] % FOLDS


def nnls(matrix: Floats, target: Floats) -> Floats:
    """Non-negative least squares, x >= 0 with the least |matrix x - target|: Lawson and Hanson."""
    columns = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    used = scale > 0  # others may be anything: 0
    scaled = matrix / np.where(used, scale, 1)
    x, active = np.zeros(columns), np.zeros(columns, dtype=bool)
    for _ in range(10 * columns):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[active | ~used] = -np.inf
        if gradient.max() <= 1e-10 * np.linalg.norm(target):
            break
        active[gradient.argmax()] = True
        x = _inside(scaled, target, x, active)
    return x / np.where(used, scale, 1)


def _inside(matrix: Floats, target: Floats, x: Floats, active: NDArray[np.bool_]) -> Floats:
    """The least squares of the active columns; those that would be negative become inactive."""
    while True:
        wanted = np.zeros_like(x)
        wanted[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
        negative = active & (wanted <= 0)
        if not negative.any():
            return wanted
        steps = x[negative] / (x[negative] - wanted[negative])
        x = x + steps.min() * (wanted - x)
        active &= x > 1e-12
        x[~active] = 0
        if not active.any():
            return x


def fit_relative(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 with the least squares of relative errors, (matrix x - target) / target."""
    return nnls(matrix / target[:, None], np.ones(len(target)))

"""How sure a number is: means with intervals, and paired comparisons of two subjects.

Every interval is for 95%. Comparisons are paired: both subjects saw the same examples, so what is
hard about an example is in both scores and leaves their difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from gossamer.evaluation.tasks import Score

Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Interval:
    """A value and where it lies with 95% confidence. n: how many observations it rests on."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Change:
    """A paired difference, other minus base. error: its standard error, from `n` pairs.

    won, lost: pairs in which the other's value is higher and lower; equal ones are neither.
    p: of the sign test over those pairs, which for right and wrong answers is McNemar's exact test.
    """

    value: float
    error: float
    n: int
    won: int
    lost: int
    p: float

    @property
    def half(self) -> float:
        """Half of the 95% interval, by Student's t."""
        return t_quantile(self.n - 1) * self.error if self.n > 1 else math.inf


def t_quantile(degrees: int) -> float:
    """The 97.5% quantile of Student's t; within 0.5% from 3 degrees of freedom on, exact below."""
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; must be at least 1")
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.9025))
    terms = (  # Cornish and Fisher's expansion around the normal quantile
        Z,
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92_160,
    )
    return math.fsum(term / float(degrees**power) for power, term in enumerate(terms))


def wilson(values: Sequence[float]) -> Interval:
    """The mean of scores from 0 to 1, with Wilson's interval.

    Between 0 and 1, scores vary less than right and wrong answers with the same mean would, so the
    interval is then wider than it needs to be, never narrower.
    """
    if not values:
        raise ValueError("there are no values; must be at least one")
    if not all(0 <= value <= 1 for value in values):
        wrong = next(value for value in values if not 0 <= value <= 1)
        raise ValueError(f"a value is {wrong}; must be from 0 to 1")
    n, p = len(values), math.fsum(values) / len(values)
    spread = Z**2 / n
    centre = (p + spread / 2) / (1 + spread)
    half = Z * math.sqrt(p * (1 - p) / n + spread / (4 * n)) / (1 + spread)
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), n)


def ratio(sums: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """sum(sums) / sum(weights), and its standard error over the parts (infinite for a single one).

    For equal weights this is the mean and the standard error of the mean.
    """
    if not sums or len(sums) != len(weights) or min(weights) <= 0:
        raise ValueError(
            f"{len(sums)} sums for {len(weights)} weights; must be as many, positive weights"
        )
    n, total = len(sums), math.fsum(weights)
    value = math.fsum(sums) / total
    if n == 1:
        return value, math.inf
    rest = math.fsum((s - value * w) ** 2 for s, w in zip(sums, weights, strict=True))
    return value, math.sqrt(n / (n - 1) * rest) / total


def weighted_mean(sums: Sequence[float], weights: Sequence[float]) -> Interval:
    """NLL per token of pieces of text, with Student's interval over the pieces."""
    value, error = ratio(sums, weights)
    half = t_quantile(len(sums) - 1) * error if len(sums) > 1 else math.inf
    return Interval(value, value - half, value + half, len(sums))


def paired_change(
    base: Sequence[float], other: Sequence[float], weights: Sequence[float] | None = None
) -> Change:
    """Paired t: the mean of other - base, per unit of weight, and its error over the pairs."""
    if not base or len(base) != len(other):
        raise ValueError(
            f"{len(base)} values against {len(other)}; must be as many, and at least one"
        )
    differences = [o - b for b, o in zip(base, other, strict=True)]
    value, error = ratio(differences, [1.0] * len(base) if weights is None else weights)
    won, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Change(value, error, len(base), won, lost, sign_test(won, lost))


def sign_test(won: int, lost: int) -> float:
    """Two-sided exact p of these wins and losses if both were equally likely."""
    n, few = won + lost, min(won, lost)
    if n > 1000:  # the exact sum has numbers beyond floats; with continuity correction
        return min(1.0, 2 * NormalDist().cdf((few + 0.5 - n / 2) / math.sqrt(n / 4)))
    tail: int = sum(math.comb(n, k) for k in range(few + 1))
    return min(1.0, tail / 2 ** (n - 1)) if n else 1.0


# ---- of scores --------------------------------------------------------------------------------


def shared(
    base: Mapping[str, Score], other: Mapping[str, Score]
) -> tuple[list[Score], list[Score]]:
    """The scores of the examples that both have, in the same order."""
    ids = [name for name in base if name in other]
    return [base[name] for name in ids], [other[name] for name in ids]


def paired_pieces(
    base: Sequence[Score], other: Sequence[Score]
) -> tuple[list[float], list[float], list[float]]:
    """NLL sums of the pieces that both sides have, and their tokens.

    Windows end with the same piece; a subject may leave out the first ones (Subject.first_scored).
    """
    before: list[float] = []
    after: list[float] = []
    tokens: list[float] = []
    for ours, theirs in zip(base, other, strict=True):
        (sums, weights), (others, _) = pieces([ours]), pieces([theirs])
        both = min(len(sums), len(others))
        before += sums[len(sums) - both :]
        after += others[len(others) - both :]
        tokens += weights[len(weights) - both :]
    return before, after, tokens


def pieces(scores: Sequence[Score]) -> tuple[list[float], list[float]]:
    """NLL sums and tokens of the pieces that scores of kind "nll" consist of.

    A score is one piece, unless meta["pieces"] has sums of meta["piece_tokens"] tokens each, the
    last of what is left.
    """
    sums: list[float] = []
    weights: list[float] = []
    for score in scores:
        parts = score.meta.get("pieces") or [score.value]
        size = score.meta.get("piece_tokens", score.weight)
        sums += parts
        weights += [float(size)] * (len(parts) - 1) + [score.weight - size * (len(parts) - 1)]
    return sums, weights

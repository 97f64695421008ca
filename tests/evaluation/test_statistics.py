"""Statistics against numbers computed by hand and by simulation."""

import itertools
import math
import random

import pytest

from gossamer.evaluation.statistics import (
    paired_change,
    paired_pieces,
    pieces,
    ratio,
    shared,
    sign_test,
    t_quantile,
    weighted_mean,
    wilson,
)
from gossamer.evaluation.tasks import Score


def test_t_quantiles_of_the_tables():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 10: 2.228, 30: 2.042, 255: 1.969}
    for degrees, expected in table.items():
        assert t_quantile(degrees) == pytest.approx(expected, rel=5e-3), degrees
    with pytest.raises(ValueError, match="degrees is 0; must be at least 1"):
        t_quantile(0)


def test_wilson_of_the_textbook():
    found = wilson([1.0] * 81 + [0.0] * 182)  # Newcombe 1998, table I: 81/263
    assert found.value == pytest.approx(81 / 263)
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    found = wilson([0.0] * 20)  # 0/20
    assert (found.low, found.high) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson([1.0]).high == 1.0


def test_wilson_solves_its_equation():
    """The ends are the p whose own spread reaches the observed mean."""
    for right, n in ((3, 10), (65, 100), (1, 7)):
        found = wilson([1.0] * right + [0.0] * (n - right))
        for end in (found.low, found.high):
            distance = abs(right / n - end) / math.sqrt(end * (1 - end) / n)
            assert distance == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("values", [[], [0.5, 1.5], [-0.1], [math.nan]])
def test_wilson_refuses(values):
    with pytest.raises(ValueError, match="must be"):
        wilson(values)


def test_equal_weights_are_the_usual_paired_t():
    base, other = [1.0, 2.0, 3.0, 4.0], [1.5, 2.0, 4.0, 4.5]  # differences .5 0 1 .5
    change = paired_change(base, other)
    assert change.value == pytest.approx(0.5)
    deviation = math.sqrt((0 + 0.25 + 0.25 + 0) / 3)
    assert change.error == pytest.approx(deviation / 2)
    assert change.half == pytest.approx(3.182 * change.error, rel=5e-3)
    assert (change.won, change.lost, change.n) == (3, 0, 4)


def test_weights_are_tokens():
    """Two pieces of 64 tokens and one of 32: the mean is per token."""
    sums, weights = [64.0, 128.0, 16.0], [64.0, 64.0, 32.0]
    value, error = ratio(sums, weights)
    assert value == pytest.approx(208 / 160)
    rest = [s - value * w for s, w in zip(sums, weights, strict=True)]
    assert error == pytest.approx(math.sqrt(1.5 * sum(x * x for x in rest)) / 160)
    found = weighted_mean(sums, weights)
    assert found.half == pytest.approx(t_quantile(2) * error)
    assert weighted_mean([3.0], [2.0]).value == 1.5
    assert math.isinf(weighted_mean([3.0], [2.0]).high)


def test_the_error_is_that_of_repeated_samples():
    random.seed(1)

    def sample():
        weights = [random.choice([32.0, 64.0]) for _ in range(100)]
        return ratio([w + random.gauss(0, 8) for w in weights], weights)

    found = [sample() for _ in range(400)]
    values = [value for value, _ in found]
    spread = math.sqrt(sum((v - 1) ** 2 for v in values) / len(values))
    assert sum(error for _, error in found) / len(found) == pytest.approx(spread, rel=0.1)


def test_sign_test_counts_all_outcomes():
    for won, lost in ((0, 0), (1, 0), (5, 1), (3, 3), (0, 6), (2, 7)):
        n = won + lost
        outcomes = [sum(toss) for toss in itertools.product((0, 1), repeat=n)]
        as_far = [w for w in outcomes if abs(w - n / 2) >= abs(won - n / 2)]
        assert sign_test(won, lost) == pytest.approx(len(as_far) / len(outcomes))
    assert sign_test(500, 500) == pytest.approx(sign_test(501, 501), abs=1e-3) == 1.0
    exact, near = sign_test(460, 540), sign_test(461, 541)  # on both sides of the switch
    assert exact == pytest.approx(near, rel=0.02)


def test_change_refuses_what_is_no_pair():
    with pytest.raises(ValueError, match="1 values against 2"):
        paired_change([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="must be"):
        paired_change([], [])
    with pytest.raises(ValueError, match="positive weights"):
        ratio([1.0], [0.0])


def test_pieces_that_both_sides_have():
    """A subject that left out its first two pieces is compared on the last one alone."""
    whole = Score("a", 6.0, 130.0, {"pieces": [1.0, 2.0, 3.0], "piece_tokens": 64})
    late = Score("a", 4.0, 2.0, {"pieces": [4.0], "piece_tokens": 64})
    assert paired_pieces([whole], [late]) == ([3.0], [4.0], [2.0])
    assert paired_pieces([late], [whole]) == ([4.0], [3.0], [2.0])
    assert paired_pieces([whole], [whole])[2] == [64.0, 64.0, 2.0]


def test_pieces_of_scores():
    whole = Score("a", 5.0, 10.0)
    cut = Score("b", 6.0, 130.0, {"pieces": [1.0, 2.0, 3.0], "piece_tokens": 64})
    assert pieces([whole, cut]) == ([5.0, 1.0, 2.0, 3.0], [10.0, 64.0, 64.0, 2.0])


def test_shared_examples_in_one_order():
    a = {name: Score(name, 0.0) for name in "abc"}
    b = {name: Score(name, 1.0) for name in "cxb"}
    base, other = shared(a, b)
    assert [s.example for s in base] == [s.example for s in other] == ["b", "c"]

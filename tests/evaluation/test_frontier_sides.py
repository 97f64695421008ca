"""Budgets, candidates and which of them are worth a look: everything before the engine."""

import pytest

from gossamer.evaluation.frontier.candidates import (
    Budget,
    Problem,
    make_candidates,
    uniform,
    within,
)
from gossamer.evaluation.frontier.prediction import (
    Law,
    Predicted,
    choose_pairs,
    predict,
    ranked_pairs,
    variants,
)
from gossamer.evaluation.pareto import front, near_front, spread
from gossamer.evaluation.statistics import Change
from gossamer.kv import Dense, KVConfig, KVShape, Side, Sparse
from gossamer.kv.bits import kernel_pairs
from gossamer.kv.layouts import Coded
from gossamer.kv.policies import POLICIES

SHAPE = KVShape(layers=3, query_heads=8, kv_heads=4, head_dim=64)
PLAIN = KVConfig().bytes_per_token(SHAPE)


def change(value, error=0.001):
    return Change(value, error, 100, 0, 0, 1.0)


def budget_of(words, length=8192, shape=SHAPE):
    return Budget.parse(words, shape, length)


# ---- bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["dense", "sparse:k=16,v=24", "dense:int3@channel,window=128,sink=64", "dense:int8"]
)
@pytest.mark.parametrize("length", [32, 64, 8192])
def test_bytes_are_those_of_tokens_that_fit(spec, length):
    config = KVConfig.parse(spec)
    size = config.sequence_bytes(SHAPE, length)
    assert config.tokens_that_fit(size, SHAPE) == length
    assert config.tokens_that_fit(size - 1, SHAPE) < length


def test_windows_and_sinks_are_not_free():
    specs = ("", ",sink=32", ",window=64", ",window=128", ",window=128,sink=32")
    shares = [KVConfig.parse("dense:int4" + words).share_at(SHAPE, 4096) for words in specs]
    layout = KVConfig.parse("dense:int4").share(SHAPE)
    assert shares[0] == pytest.approx((2 + 126 * layout) / 128)
    assert shares[1] == shares[2]
    assert shares == sorted(shares)
    assert KVConfig.parse("dense:int4").share_at(SHAPE, 64) == 1  # all of it is dense
    assert KVConfig().share_at(SHAPE, 8192) == 1


@pytest.mark.parametrize(
    ("words", "share"),
    [("25%", 0.25), (" 12.5 %", 0.125), ("384", 384 / PLAIN), ("1.5KiB", 1536 / PLAIN)],
)
def test_budgets(words, share):
    assert budget_of(words).share == pytest.approx(share)


@pytest.mark.parametrize(
    "words", ["120%", "100%", "0", "0%", "-3", "abc", "", "25%%", f"{PLAIN:.0f}"]
)
def test_wrong_budgets_say_what_is_valid(words):
    valid = "must be above 0% and below 100% .* or bytes per token from 1 to 3071"
    with pytest.raises(ValueError, match=valid) as error:
        budget_of(words)
    assert f"budget is {words!r}" in str(error.value)


def test_a_wrong_length():
    with pytest.raises(ValueError, match="length is 31; must be at least 32 tokens"):
        budget_of("25%", length=31)


# ---- candidates -------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [8, 32, 40, 64, 80, 128, 256])
def test_candidates_of_any_head_dim(head_dim):
    found = make_candidates(head_dim, half="fp16", calibrated=True)
    shape = KVShape(layers=1, query_heads=1, kv_heads=1, head_dim=head_dim)
    for k in found.k:
        config = KVConfig(k, found.v[0])
        assert config.block_bytes(shape) > 0
        assert KVConfig.parse(str(config)) == config
    for sides in (found.k, found.v):
        assert len(set(sides)) == len(sides)
        sizes = [side.block_bytes(head_dim) for side in sides]
        assert sizes == sorted(sizes)


def test_candidates_are_what_can_be_had():
    found = make_candidates(128, half="bf16", calibrated=True)
    assert Side(Dense("int4", "channel"), "pca") in found.k
    assert Side(Dense("int3", "group")) in found.v
    assert Side(Sparse(48, "int3", "channel"), "pca", "weighted") in found.k
    assert {s.layout.keep for s in found.k if isinstance(s.layout, Sparse)} == {32, 48, 64, 80}
    assert Side(Sparse(32, "bf16")) in found.v
    assert {s.policy for s in found.k} == set(POLICIES)
    assert {s.policy for s in found.v} == {"magnitude"}


def test_without_a_calibration_nothing_needs_one():
    found = make_candidates(64, half="fp16", calibrated=False)
    assert not any(KVConfig(k, found.v[0]).calibrated for k in found.k)
    assert not any(KVConfig(found.k[0], v).calibrated for v in found.v)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_coded_rows_are_those_with_kernels(head_dim):
    shape = KVShape(layers=1, query_heads=4, kv_heads=1, head_dim=head_dim)
    problem = Problem(shape, budget_of("60%", shape=shape), calibrated=True, coded=True)
    found = problem.candidates()
    coded = [[s for s in sides if isinstance(s.layout, Coded)] for sides in (found.k, found.v)]
    names = [{str(s.layout) for s in sides} for sides in coded]
    eighth = head_dim // 8
    assert f"coded:8x{eighth}+4x{5 * eighth}+2x{2 * eighth}@row" in names[0]
    assert f"coded:4x{2 * eighth}+3x{4 * eighth}+2x{2 * eighth}@row" in names[1]
    allowed = {(k.layout, v.layout) for k in coded[0] for v in coded[1] if problem.allows(k, v)}
    assert allowed == set(kernel_pairs(head_dim))
    plain = Side(Dense("int4", "row"))
    assert problem.allows(plain, plain)
    assert not any(problem.allows(k, plain) for k in coded[0])
    assert not any(problem.allows(plain, v) for v in coded[1])


@pytest.mark.parametrize(("head_dim", "coded"), [(64, False), (96, True)])
def test_no_coded_rows_without_steps_or_kernels(head_dim, coded):
    found = make_candidates(head_dim, half="fp16", calibrated=True, coded=coded)
    assert not any(isinstance(side.layout, Coded) for side in (*found.k, *found.v))


def test_a_budget_leaves_out_what_cannot_fit():
    every = make_candidates(64, half="fp16", calibrated=False)
    budget = budget_of("25%")
    left = within(every, SHAPE, budget, 1.0)
    for k in left.k:
        assert budget.holds(KVConfig(k, every.v[0]), SHAPE)
    for k in set(every.k) - set(left.k):
        assert not budget.holds(KVConfig(k, every.v[0]), SHAPE)
    assert len(within(every, SHAPE, budget, 1.5).v) > len(left.v)


def test_a_budget_that_nothing_fits():
    every = make_candidates(64, half="fp16", calibrated=False)
    message = r"must be at least 13\.\d+% or \d+ bytes per token at 8192 .*: sparse:k=16,v=16,"
    with pytest.raises(ValueError, match=message):
        within(every, SHAPE, budget_of("11%"), 1.25)
    with pytest.raises(ValueError, match="at 64 tokens"):
        within(every, SHAPE, budget_of("50%", length=64), 1.25)


def test_uniform_pruning_keeps_as_much_as_fits():
    budget = budget_of("25%")
    found = uniform(SHAPE, budget, "fp16")
    words = ["sparse:k=8,v=8", "sparse:k=16,v=16,values=int8", "sparse:k=40,v=40,values=int4"]
    assert [str(config) for config in found] == words
    for config in found:
        more = Sparse(config.k.layout.keep + 8, config.k.layout.values)
        assert budget.holds(config, SHAPE)
        assert not budget.holds(KVConfig(Side(more), Side(more)), SHAPE)
    assert len(uniform(SHAPE, budget_of("13%"), "fp16")) == 1  # only int4


# ---- fronts -----------------------------------------------------------------------------------


def test_front():
    points = {"a": (1, 9.0), "b": (2, 5.0), "c": (3, 5.5), "d": (4, 1.0), "e": (4, 2.0)}
    assert front(points) == ["a", "b", "d"]
    assert near_front(points, 1.0) == ["a", "b", "d"]
    assert near_front(points, 1.2) == ["a", "b", "c", "d"]
    assert near_front(points, 2.0) == ["a", "b", "c", "d", "e"]
    assert front({}) == []


def test_spread_takes_all_sizes_and_kinds():
    sizes = {f"{kind}{size}": float(size) for size in range(10) for kind in "xyz"}
    errors = {name: 1 / (1 + size) + "xyz".index(name[0]) for name, size in sizes.items()}
    kinds = {name: name[0] for name in sizes}
    found = spread(list(sizes), sizes, errors, kinds, 5)
    assert len(found) == 5
    assert {name[0] for name in found} == {"x", "y", "z"}
    assert [int(sizes[name]) // 2 for name in found] == [0, 1, 2, 3, 4]
    assert found[0] == "x1"  # of the first part, the better one
    assert spread(["x1", "y1"], sizes, errors, kinds, 5) == ["x1", "y1"]
    alike = dict.fromkeys(sizes, 1.0)
    assert len(spread(list(sizes), alike, errors, kinds, 5)) == 5


# ---- predictions ------------------------------------------------------------------------------


def sides(*keeps, **options):
    return [Side(Sparse(keep, "int4"), **options) for keep in keeps]


def test_what_probes_say_holds_for_the_others():
    a, b, c, d = sides(8, 16, 24, 32)
    errors = {a: 0.8, b: 0.4, c: 0.2, d: 0.1}
    found = predict(errors, {a: change(0.08), c: change(0.02), d: change(0.01)})
    assert found[b] == pytest.approx(0.04, rel=0.01)
    assert found[a] == pytest.approx(0.08, rel=0.01)
    assert predict(errors, {}) == pytest.approx(errors)


def test_a_noisy_probe_counts_little():
    a, b, c, d = sides(8, 16, 24, 32)
    errors = {a: 0.8, b: 0.4, c: 0.2, d: 0.1}
    probes = {a: change(0.08), b: change(0.04), d: change(0.01)}
    noisy, sure = (
        predict(errors, {**probes, c: change(-0.01, error)})[c] for error in (0.02, 1e-5)
    )
    assert noisy == pytest.approx(0.02, rel=0.5)
    assert sure == 0
    endless = predict(errors, {a: change(0.08, float("inf"))})
    assert endless[b] == pytest.approx(0.04)


CODED = [Side(Coded(f"{bits}x64", "row")) for bits in (8, 4, 3, 2)]


@pytest.mark.parametrize("turned", [sides(8, 16, 24, 32, basis="pca"), CODED])
def test_kinds_learn_from_their_own(turned):
    plain = sides(8, 16, 24, 32)
    errors = {s: 0.1 * (i + 1) for group in (plain, turned) for i, s in enumerate(group)}
    probes = {s: change(errors[s]) for s in plain[:3]}
    probes |= {s: change(errors[s] / 10) for s in turned[:3]}
    found = predict(errors, probes)
    assert found[plain[3]] > 3 * found[turned[3]]
    assert Law.of(errors, {}).slope == 1


def test_pairs_in_order_and_within_the_budget():
    k, v = dict(zip(sides(8, 16), (0.5, 0.1), strict=True)), dict.fromkeys(sides(8), 0.2)
    pairs = ranked_pairs(k, v, lambda a, b: True)
    assert [p[0].layout.keep for p in pairs] == [16, 8]
    assert ranked_pairs(k, v, lambda a, b: a.layout.keep == 8) == [pairs[1]]


def predicted(words="25%"):
    every = make_candidates(64, half="fp16", calibrated=False)
    budget = budget_of(words)
    left = within(every, SHAPE, budget, 1.25)
    cost = {s: 100.0 / s.block_bytes(64) ** 2 for s in (*left.k, *left.v)}
    return Predicted({s: cost[s] for s in left.k}, {s: cost[s] for s in left.v}, SHAPE, budget)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9])
def test_pairs_to_measure(count):
    found = predicted()
    pairs = choose_pairs(found, count)
    assert len(set(pairs)) == len(pairs) == count
    shares = [pair.share_at(SHAPE, 8192) for pair in pairs]
    inside = [share <= 0.25 for share in shares]
    assert all(inside[: count - count // 2])
    assert inside.count(False) == (1 if count > 1 else 0)
    assert max(shares) <= 0.25 * 1.25
    assert pairs[0] == next(found.best())
    if count > 4:
        assert min(shares) < 0.22


def test_sides_of_bad_pairs_are_not_promising():
    found = predicted()
    best = next(found.best())
    for factor in (1.0, 1.5):
        k, v = found.promising(factor)
        assert best.k in k
        assert best.v in v
        for side in k:
            least = min(found.cost(KVConfig(side, o)) for o in found.v if found.fits(side, o))
            assert least <= factor * found.cost(best)
    assert len(k) < len(found.k)


def test_pairs_of_a_budget_close_to_dense():
    assert all(p.share_at(SHAPE, 8192) < 1 for p in choose_pairs(predicted("90%"), 8))


def test_variants_of_the_best_pair_that_has_room():
    large, small = Side(Dense("int3", "channel")), Side(Dense("int3"))
    fits = KVConfig(large, large).share_at(SHAPE, 8192)

    def found(room, sink=0, measured=None):
        budget = Budget("some", fits + room, 8192)
        costs = {large: 0.01, small: 0.02}
        predicted = Predicted(costs, costs, SHAPE, budget, sink)
        return [str(config) for config in variants(predicted, measured or {})]

    wide = ["dense:int3@channel,sink=32", "dense:int3@channel,window=64"]
    assert found(0.004)[:2] == wide
    assert found(0.004)[2] == "k=dense:int3@channel,v=dense:int3,window=128"
    assert not any(spec.startswith("dense:int3@channel") for spec in found(0.001))
    with_sink = found(0.02, sink=32)
    assert with_sink[0] == "dense:int3@channel"
    assert with_sink[1:] == [f"dense:int3@channel,window={w},sink=32" for w in (64, 128)]
    measured = {KVConfig(small, small): 0.001}  # better than was predicted
    assert found(0.02, measured=measured)[0] == "dense:int3,sink=32"
    assert found(-fits) == []

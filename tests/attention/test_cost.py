"""The cost model: facts of a mask, features, and coefficients from times."""

import numpy as np
import pytest
import torch

from gossamer import masks as m
from gossamer.attention.candidates import Call, Candidate
from gossamer.attention.cost import FEATURES, Model, TileFacts, _makespan, features, group_of
from gossamer.attention.fitting import (
    Sample,
    by_mask,
    fit,
    fit_relative,
    held_out,
    nnls,
    regret,
)
from gossamer.masks.work import piece_limit, work_list

CALL = Call(2, 12, 4, 1000, 1000, 64, 2)


def facts(mask, n=1000, tile=(64, 64)):
    return TileFacts.of(m.TileMap.build(mask, n, n, tile))


@pytest.mark.parametrize(
    "name", ["/".join(("", "")), "x", "cuda", "cuda 64", "rows", "cuda 64x32 limit=a"]
)
def test_names_that_are_no_candidates(name):
    with pytest.raises(ValueError, match="must be as in"):
        Candidate.parse(name)


@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("block", "cuda", (64, 32), 12),
        Candidate("block", "cpu", (32, 32)),
        Candidate("rows", "triton"),
        Candidate("sdpa", "flash"),
    ],
    ids=str,
)
def test_names_of_candidates(candidate):
    assert Candidate.parse(str(candidate)) == candidate


@pytest.mark.parametrize(
    "mask", [m.Causal(), m.Longformer(9, 0), m.per_head([m.Full(), m.Causal()])], ids=str
)
@pytest.mark.parametrize("limit", [0, 1, 3, 7, 100])
def test_pieces_are_those_of_the_work_list(mask, limit):
    tiles = m.TileMap.build(mask, 1000, 1000, (64, 32))
    found = TileFacts.of(tiles)
    counts = tiles.counts()
    assert (found.full.sum(), found.partial.sum()) == (counts.full, counts.partial)
    work = work_list(tiles, limit or 1 << 30)
    assert found.pieces(limit).tolist() == (work[:, 2] - work[:, 1]).tolist()
    assert found.piece_limit(12, 132, 256) == piece_limit(tiles, 12, 132, 256)


def test_makespan():
    pieces = np.array([8, 3, 3, 3])
    assert _makespan(pieces, 1, 1) == 17
    assert _makespan(pieces, 1, 2) == 8.5
    assert _makespan(pieces, 1, 4) == 8
    equal = np.array([5] * 9)
    assert _makespan(equal, 1, 8) == 10  # two rounds
    assert _makespan(equal, 2, 8) == 15  # 18 of them


@pytest.mark.parametrize(
    "candidate", ["cuda 64x64", "cuda 64x64 limit=3", "rows triton", "sdpa flash", "sdpa mask"]
)
def test_features_grow_with_the_work(candidate):
    found = Candidate.parse(candidate)
    small = features(found, CALL, facts(m.Causal()), 132)
    larger = Call(16, 12, 4, 1000, 1000, 64, 2)
    large = features(found, larger, facts(m.Causal()), 132)
    assert len(small) == len(FEATURES[found.kernel])
    assert all(b >= a >= 0 for a, b in zip(small, large, strict=True))
    assert sum(large) > sum(small)


def test_nnls_against_known_coefficients():
    rng = np.random.default_rng(0)
    for _ in range(20):
        matrix = rng.random((40, 6)) * 10 ** rng.uniform(-3, 3, 6)
        wanted = rng.random(6) * (rng.random(6) < 0.6)
        np.testing.assert_allclose(nnls(matrix, matrix @ wanted), wanted, atol=1e-7)


def test_nnls_is_never_negative_and_best():
    rng = np.random.default_rng(1)
    for _ in range(20):
        matrix, target = rng.normal(size=(30, 4)), rng.normal(size=30)
        found = nnls(matrix, target)
        assert (found >= 0).all()
        gradient = matrix.T @ (target - matrix @ found)
        assert (gradient <= 1e-8).all()  # no coefficient would help by growing
        assert np.allclose(gradient[found > 0], 0, atol=1e-8)
    assert (nnls(np.zeros((3, 2)), np.ones(3)) == 0).all()


def test_relative_errors_count():
    """A point of a microsecond counts as much as one of a millisecond."""
    matrix = np.array([[1.0], [1000.0]])
    assert fit_relative(matrix, np.array([2.0, 1000.0]))[0] == pytest.approx(1.2)


def samples(coefficients, noise=0.0):
    """Times that such coefficients would make."""
    generator = torch.Generator().manual_seed(0)
    found = []
    shapes = [(b, n, d) for b in (1, 4, 16) for n in (128, 500, 1024, 2048) for d in (64, 128)]
    masks = {"causal": m.Causal(), "sliding": m.Sliding(64, 0), "global": m.Longformer(9, 0)}
    known = {(name, n, t): facts(mask, n, t) for name, mask in masks.items()
             for n in (128, 500, 1024, 2048) for t in ((64, 64), (32, 32))}  # fmt: skip
    for name in masks:
        for batch, n, head_dim in shapes:
            call = Call(batch, 12, 12, n, n, head_dim, 2)
            for text, numbers in coefficients.items():
                candidate = Candidate.parse(text)
                tile_facts = known[name, n, candidate.tile]
                time = float(np.dot(numbers, features(candidate, call, tile_facts, 132)))
                time *= 1 + noise * float(torch.rand((), generator=generator) - 0.5)
                point = f"{name} {batch}x{n}x{head_dim}"
                found.append(Sample(point, candidate, call, tile_facts, time))
    return found


def made(**coefficients):
    return tuple(coefficients.get(name, 0.0) for name in FEATURES["block"])


TRUE = {
    "cuda 64x64": made(launch=6, bytes=0.1, full=0.4, strips=0.6, pieces=0.5, longest=0.3),
    "cuda 32x32": made(launch=5, bytes=0.1, full=0.2, strips=0.25, pieces=0.4, longest=0.2),
}


def test_a_fit_recovers_what_made_the_times():
    times = samples(TRUE)
    model = fit(times, 132)
    for sample in times:
        cost = model.microseconds(sample.candidate, sample.call, sample.facts)
        assert cost == pytest.approx(sample.microseconds, rel=1e-4)
    assert regret(times, model).worst < 1e-3


def test_regret_at_points_that_were_left_out():
    times = samples(TRUE, noise=0.02)
    for fold, worst in ((None, 0.1), (by_mask, 0.25)):
        found = held_out(times, 132, fold)
        assert len(found.shares) == len({s.point for s in times})
        assert found.median <= 0.02
        assert found.worst <= worst
    assert "median" in str(found)


def test_what_is_not_known():
    model = Model(132, {group_of(Candidate.parse("cuda 64x64"), 64): TRUE["cuda 64x64"]})
    known = facts(m.Causal())
    assert model.microseconds(Candidate.parse("triton 64x64"), CALL, known) is None
    near = model.microseconds(Candidate.parse("cuda 64x64"), CALL, known)
    wide = Call(2, 12, 4, 1000, 1000, 128, 2)
    assert model.microseconds(Candidate.parse("cuda 64x64"), wide, known) > 1.5 * near


def test_strips_that_see_nothing_do_not_count():
    """Of 64 queries of a tile, those of the first strip of 16 see a key."""
    table = torch.zeros(64, 64, dtype=torch.bool)
    table[3, 5] = True
    found = facts(m.DenseMask(table), 64)
    assert found.partial.tolist() == [1]
    assert found.strips == 0.25
    table[20:] = True
    assert facts(m.DenseMask(table), 64).strips == 1
    assert facts(m.Full(), 64).strips == 0


def test_few_samples_do_not_make_small_calls_free():
    candidate = Candidate.parse("sdpa flash")
    known = facts(m.Full(), 128)
    calls = [Call(b, 12, 12, 4096, 4096, 64, 2) for b in (1, 16)]
    times = [Sample("full", candidate, call, known, 100.0 * call.batch) for call in calls]
    small = Call(1, 12, 12, 128, 128, 64, 2)
    other = Sample("full", Candidate.parse("cuda 64x64"), small, known, 6.0)
    cost = fit([*times, other], 132).microseconds(candidate, small, known)
    assert 8 < cost < 20

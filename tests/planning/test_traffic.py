"""The steady state: laws that it must keep, and requests played one by one."""

from dataclasses import replace
from statistics import mean

import pytest

from gossamer.planning.memory import Limits
from gossamer.planning.simulation import Arrival, poisson_arrivals, simulate
from gossamer.planning.traffic import MOST_BUSY, Replica, Traffic
from gossamer.workloads.bounds import Bounds
from tests.planning.given import CODED, step_model


def replica(prompt=2000, output=256, spec="dense", hit=0.0, **bounds):
    return Replica(step_model(spec), Traffic(prompt, output, hit), Limits(), Bounds(**bounds))


@pytest.mark.parametrize("spec", ["dense", CODED])
@pytest.mark.parametrize(("prompt", "output"), [(2000, 256), (30000, 256), (500, 2000)])
def test_littles_law(spec, prompt, output):
    found = replica(prompt, output, spec)
    for share in (0.1, 0.5, 0.9):
        state = found.state(share * found.most.rate)
        assert state.batch == pytest.approx(state.rate * (output - 1) * state.tpot, rel=1e-3)
        assert sum(state.shares.values()) == pytest.approx(1)


def test_more_requests_take_longer():
    found = replica()
    states = [found.state(share * found.most.rate) for share in (0.0, 0.3, 0.6, 0.9)]
    for name in ("batch", "tpot", "ttft", "busy"):
        values = [getattr(state, name) for state in states]
        assert values == sorted(values)
        assert values[0] < values[-1]


@pytest.mark.parametrize(
    ("limit", "made"),
    [
        ("KV memory", {"prompt": 30000}),
        ("max_num_seqs", {"prompt": 500, "output": 1000}),
        ("prompts", {"prompt": 30000, "output": 1}),
        ("tpot", {"tpot": 12.0}),
        ("ttft", {"ttft": 80.0}),
        ("e2e", {"e2e": 4000.0}),
    ],
)
def test_what_limits_the_rate(limit, made):
    found = replica(**made)
    assert found.limit == limit
    used = found.used(found.most)
    assert used[limit] == pytest.approx(1, abs=0.01)
    assert max(used.values()) <= 1
    assert max(found.used(found.state(1.02 * found.most.rate)).values()) > 1


def test_prompts_alone_are_as_fast_as_the_steps_that_compute_them():
    found = replica(prompt=8192, output=1)
    state = found.most
    assert state.batch == 0
    whole = state.busy / state.rate
    assert state.busy == pytest.approx(MOST_BUSY, abs=1e-3)
    played = simulate(found.model, [Arrival(8192, 1)] * 20, Limits())
    assert whole == pytest.approx(played.seconds / 20, rel=0.05)


def test_cached_prompts_and_small_caches_serve_more():
    plain = replica(30000).most.rate
    assert replica(30000, hit=0.9).most.rate > 2 * plain
    assert replica(30000, spec=CODED).most.rate > plain
    assert replica(30000, hit=0.9, spec=CODED).most.rate > 1.5 * replica(30000, hit=0.9).most.rate


def test_a_request_alone_is_too_slow():
    with pytest.raises(ValueError, match=r"tpot of a request alone is .* must be at most 1$"):
        _ = replica(tpot=1.0).most


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", 0), ("output", 0), ("output", 1.5), ("prefix_hit", 1.0), ("prefix_hit", -0.1)],
)
def test_traffic_that_is_none(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        replace(Traffic(10, 10), **{name: value})


@pytest.mark.parametrize(("prompt", "output", "spec"), [(1000, 256, "dense"), (8000, 64, CODED)])
def test_requests_that_come_at_random_take_as_long(prompt, output, spec):
    found = replica(prompt, output, spec)
    state = found.state(0.6 * found.most.rate)
    arrivals = poisson_arrivals(prompt, output, state.rate, 400)
    served = simulate(found.model, arrivals, Limits()).served[50:-50]
    assert mean(s.tpot for s in served) == pytest.approx(state.tpot, rel=0.35)
    assert mean(s.ttft for s in served) == pytest.approx(state.ttft, rel=0.35)


def test_no_more_go_through_than_the_highest_rate():
    """At 1.3 times the rate, a queue grows; at 0.8 times, none does."""
    found = replica(8000, 128)
    late = []
    for share in (0.8, 1.3):
        arrivals = poisson_arrivals(8000, 128, share * found.most.rate, 300)
        played = simulate(found.model, arrivals, Limits())
        late.append(played.seconds / arrivals[-1].second)
    assert late[0] < 1.1
    assert late[1] > 1.2

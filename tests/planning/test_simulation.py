"""Requests through the scheduler, where their times can be told by hand."""

from dataclasses import replace

import pytest

from gossamer.planning.memory import Limits
from gossamer.planning.simulation import Arrival, simulate
from gossamer.planning.step import Work
from tests.planning.given import round_gpu, step_model


def test_one_request_takes_its_chunks_and_its_tokens():
    model = step_model(on=round_gpu())
    found = simulate(model, [Arrival(300, 3, second=7.0)], Limits(max_num_batched_tokens=200))
    chunks = [Work(0, 0, 192, 192 * 193 / 2), Work(0, 0, 108, 108 * (193 + 300) / 2, ending=1)]
    tokens = [Work(1, 301), Work(1, 302)]
    first = 7 + sum(map(model.seconds, chunks))
    (served,) = found.served
    assert served.first == pytest.approx(first)
    assert served.ttft == pytest.approx(first - 7)
    assert served.last == found.seconds == pytest.approx(first + sum(map(model.seconds, tokens)))
    assert served.tpot == pytest.approx((served.last - first) / 2)
    assert (found.steps, found.preemptions) == (4, 0)


def test_all_are_served_in_little_memory():
    model = step_model()
    arrivals = [Arrival(100 + 7 * n, 1 + n, second=n % 3) for n in range(20)]
    page = 32 * 131072
    roomy, tight = (
        simulate(model, arrivals, Limits(kv_memory=pages * page)) for pages in (1000, 16)
    )
    for found in (roomy, tight):
        assert sorted(s.arrival.prompt for s in found.served) == [a.prompt for a in arrivals]
        assert all(s.last >= s.first > s.arrival.second for s in found.served)
    assert roomy.preemptions == 0 < tight.preemptions
    assert roomy.seconds < tight.seconds


def test_a_request_that_never_fits():
    with pytest.raises(ValueError, match="does not fit into"):
        simulate(step_model(), [Arrival(1000, 1)], Limits(kv_memory=10 * 32 * 131072))


def test_a_slower_host_is_waited_for():
    gpu = round_gpu()
    slow = replace(gpu, engine=replace(gpu.engine, token_seconds=100.0))
    found = simulate(step_model(on=slow), [Arrival(10, 3)], Limits())
    assert found.served[0].tpot == pytest.approx(100.0)

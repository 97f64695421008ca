"""Many clients, of whom many leave: benchmarks.end_to_end.soak in small, and its own checks."""

import asyncio
import random

import pytest

from benchmarks.end_to_end import soak
from gossamer.server.load import client
from gossamer.server.load.schedule import Load
from gossamer.server.load.target import probe
from tests.server.live import SPARSE, serving


@pytest.mark.parametrize("kv", ["dense", SPARSE])
def test_a_small_soak(tiny, kv):
    """Little memory, so that sequences also lose their pages to others."""
    load = Load(requests=60, concurrency=16, inputs=(16, 200), outputs=(4, 60), leaving=0.2, seed=5)
    ids = random.Random(1).choices(range(3, 97), k=2000)
    planned = soak.schedule(ids, load, hasty=0.1)
    with serving(tiny, (kv,), kv_memory="1MB" if kv == "dense" else "700KB") as live:
        target = probe(live.url)
        seen = asyncio.run(client.run(target, planned, load.concurrency))
        assert soak.in_use(target) == 0
        live.assert_empty()
        assert live.llm.engine.stats.preemptions > 0
        check = live.host.loop.call(lambda: soak.compare(live.llm, planned, seen))
        equal, answers, margins = check.result(120)
    assert [s.error for s in seen if s.error] == []
    assert sum(s.left for s in seen) >= 8
    assert answers >= 35
    assert equal == answers - len(margins)
    assert all(margin < soak.TIE for margin in margins)


def test_what_is_wrong_is_named():
    good = {
        "errors": {},
        "pages_in_use": 0,
        "memory": [100, 101, 102],
        "exit_code": 0,
        "margins_of_others": [1e-5],
    }
    assert soak.wrong(good) == []
    bad = {
        "errors": {"status 500": 1},
        "pages_in_use": 3,
        "memory": [100, 101, 110],
        "exit_code": -9,
        "margins_of_others": [0.5],
    }
    for name, value in bad.items():
        assert len(soak.wrong(good | {name: value})) == 1

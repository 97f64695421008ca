"""Requests to engines that share a store get what they would alone, in any order of events.

The engines are fakes whose pages hold hashes (tests/engine/fake.py), and the store loses pages at
any time.
"""

import itertools
import random
import time
from typing import Any

import pytest

from gossamer.engine import SamplingParams, handoff
from gossamer.engine.engine import Engine
from gossamer.engine.handoff import Handoff
from tests.engine.fake import PLAIN, FakeCopies, check_pages, fake_engine
from tests.engine.shelf import Shelf, Slow
from tests.engine.test_scheduler import (
    LONGEST,
    POOLS,
    alone,
    finish,
    least_dense,
    random_ids,
    random_requests,
    serve,
)


def sharing(engine: Engine, store: Any, role: str = "both") -> Engine:
    """The fake engine, with a handoff."""
    copies: Any = FakeCopies(engine.executor)
    engine.handoff = Handoff(store, role, "space", engine.manager, copies)
    return engine


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("spec", [spec for spec in POOLS if "prefill=dense" not in spec])
def test_any_traffic_through_any_store_gives_what_each_request_would_get_alone(spec, asynchronous):
    rng = random.Random(spec)
    fetched = published = 0
    store, wanted = Shelf(rng), random_requests(rng, 30)
    expected = alone(spec, wanted)
    for role in ("prefill", "both", "decode", "both"):
        engine = fake_engine(
            *(spec, POOLS[spec], least_dense(spec) + rng.choice([0, 3, 12]) * (spec != PLAIN)),
            max_num_seqs=4,
            budget=rng.choice([32, 100, 256]),
            longest=LONGEST,
            asynchronous=asynchronous,
        )
        sharing(engine, store, role)
        outputs = serve(engine, wanted, aborts=True)
        for request in wanted:
            pairs = zip(outputs[request.name].outputs, expected[request.name].outputs, strict=True)
            for mine, theirs in pairs:
                assert mine.token_ids == theirs.token_ids[: len(mine.token_ids)]
                assert mine.finish_reason in (theirs.finish_reason, "abort")
        assert not engine.requests
        assert len(engine.scheduler) == 0
        for pool in (engine.manager.stored, engine.manager.dense):
            assert pool.in_use == 0
        assert (engine.handoff.fetched_bytes == 0) or role != "prefill"
        assert (engine.handoff.published_bytes == 0) or role != "decode"
        fetched += engine.handoff.fetched_bytes
        published += engine.handoff.published_bytes
        engine.close()
    assert fetched > 0
    assert published > 0


def test_a_prompt_that_is_looked_up_holds_up_nobody():
    store = Slow()
    engine = sharing(fake_engine(PLAIN, 64, 0), Shelf())
    running = engine.add_request(random_ids(40), SamplingParams(max_tokens=50))
    while not engine.step():
        pass
    engine.handoff._prompts._store = store
    engine.add_request(random_ids(40), SamplingParams(max_tokens=2))
    for _ in range(5):
        assert [delta.request_id for delta in engine.step()] == [running]
    store.may_read.set()
    store.may_write.set()
    assert len(finish(engine)) == 2
    engine.close()


def test_nothing_is_left_of_a_prompt_that_is_given_up_while_it_is_looked_up():
    store = Slow()
    engine = sharing(fake_engine(PLAIN, 64, 0), store)
    names = [engine.add_request(random_ids(40), SamplingParams(n=2)) for _ in range(20)]
    assert engine.step() == []  # waits a moment, not longer
    for name in names:
        assert [delta.finish_reason for delta in engine.abort(name)] == ["abort"] * 2
    store.may_read.set()
    assert finish(engine) == {}
    assert not engine.requests
    engine.close()


def test_who_prefills_tells_the_end_when_the_pages_are_there():
    store = Slow()
    store.may_read.set()
    engine = sharing(fake_engine("sparse:k=8,v=8", 64, 32), store, "prefill")
    ids = [engine.add_request(random_ids(100), SamplingParams(max_tokens=1)) for _ in range(3)]
    deltas = [delta for _ in range(9) for delta in engine.step()]
    assert deltas == []
    assert engine.busy
    assert engine.manager.stored.in_use == 0
    engine.abort(ids[1])
    store.may_write.set()
    assert list(finish(engine)) == [ids[0], ids[2]]
    assert len(store.pages) == 3 * 3
    engine.close()


def test_a_store_that_fails_costs_computation_only(caplog):
    class Broken(Shelf):
        def touch(self, names):
            raise ConnectionError("no store")

        def put(self, name, page):
            raise OSError("no space")

    engine = sharing(fake_engine(PLAIN, 64, 0), Broken())
    engine.add_request(random_ids(100), SamplingParams(max_tokens=3))
    assert len(finish(engine)) == 1
    engine.close()
    assert "the store of pages cannot be read" in caplog.text
    assert "a prompt is not published: no space" in caplog.text


@pytest.mark.parametrize(("spec", "cached"), [(PLAIN, 96), ("sparse:k=8,v=8", 0)])
def test_a_copy_that_fails_costs_computation_only(monkeypatch, spec, cached, caplog):
    """Of the six pages of a prompt, the fourth."""
    store, prompts = Shelf(), [random_ids(200) for _ in range(2)]

    def serve_with_failing(method: str, role: str) -> Engine:
        engine = sharing(fake_engine(spec, 64, 32), store, role)
        copy, calls = getattr(FakeCopies, method), itertools.count()

        def copy_or_fail(*args: Any) -> Any:
            if next(calls) == 3:
                raise RuntimeError("out of memory")
            return copy(*args)

        with monkeypatch.context() as patch:
            patch.setattr(FakeCopies, method, copy_or_fail)
            for prompt in prompts:
                engine.add_request(prompt, SamplingParams(max_tokens=3))
            assert len(finish(engine)) == len(prompts)
        engine.close()
        return engine

    serve_with_failing("read", "prefill")
    assert "a prompt is not published: out of memory" in caplog.text
    assert len(store.pages) == 6  # of the other prompt
    engine = serve_with_failing("write", "decode")
    assert "pages that were found cannot be used" in caplog.text
    assert engine.stats.cached_tokens == cached


def publish(store: Shelf, prompts: list[list[int]]) -> None:
    engine = sharing(fake_engine(PLAIN, 64, 0), store, "prefill")
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(max_tokens=1))
    finish(engine)
    engine.close()


def test_a_prompt_waits_for_room_for_what_was_found():
    store, prompt = Shelf(), random_ids(200)
    publish(store, [prompt])
    engine = sharing(fake_engine(PLAIN, 10, 0), store)
    engine.add_request(random_ids(250), SamplingParams(max_tokens=20))
    engine.step()
    while not engine.scheduler.running:
        engine.step()
    engine.add_request(prompt, SamplingParams(max_tokens=20))
    assert len(finish(engine)) == 2
    assert engine.stats.cached_tokens == 192
    engine.close()


@pytest.mark.parametrize("pages", [24, 32, 64, 100])
def test_what_is_found_of_many_prompts_is_there_when_they_start(pages):
    store, prompts = Shelf(), [random_ids(200) for _ in range(20)]
    publish(store, prompts)
    engine = sharing(fake_engine(PLAIN, pages, 0), store, "decode")
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(max_tokens=3))
    together = 0
    while engine.busy:
        engine.step()
        together = max(together, len(engine.scheduler.running))
    assert engine.stats.cached_tokens == 20 * 192
    assert engine.handoff.fetched_bytes == 20 * 6 * 32 * 8  # and each only once
    assert together == min(8, pages // 7)
    engine.close()


def test_prompts_that_share_pages_run_together():
    store, beginning = Shelf(), random_ids(320)
    prompts = [[*beginning, *random_ids(40)] for _ in range(4)]
    publish(store, prompts)
    engine = sharing(fake_engine(PLAIN, 20, 0), store, "decode")
    for prompt in prompts:
        engine.add_request(prompt, SamplingParams(max_tokens=10))
    together = 0
    while engine.busy:
        time.sleep(0.01)  # lookups are another thread's, which may have to wait for a core
        engine.step()
        together = max(together, len(engine.scheduler.running))
    assert together == len(prompts)
    assert engine.stats.cached_tokens == 4 * 352
    engine.close()


def test_pages_are_published_once_and_fetched_once():
    store, prompt = Shelf(), random_ids(200)
    spec = "sparse:k=8,v=8"
    first, second = (sharing(fake_engine(spec, 64, 32), store) for _ in range(2))
    each = 32 * 8
    for engine, published, fetched in ((first, 6, 0), (second, 0, 6), (second, 0, 0)):
        before = engine.handoff.published_bytes, engine.handoff.fetched_bytes
        engine.add_request(prompt, SamplingParams(n=2, max_tokens=3))
        finish(engine)
        engine.handoff._writer.submit(int).result()  # after all that is to be written
        after = engine.handoff.published_bytes, engine.handoff.fetched_bytes
        moved = [now - then for now, then in zip(after, before, strict=True)]
        assert moved == [each * published, each * fetched]
    assert second.stats.prompt_tokens == 2 * 2 * 8
    longer = [*prompt, *random_ids(64)]  # the next turn: what was dense is stored by now
    first.add_request(longer, SamplingParams(max_tokens=1))
    finish(first)
    for engine in (first, second):
        check_pages(engine)
        engine.close()
    assert len(store.pages) == 6 + 1 + 2


@pytest.mark.parametrize("bound", ["AHEAD", "UNUSED"])
def test_requests_start_in_their_order(monkeypatch, bound):
    ahead, longest = 400, 300
    monkeypatch.setattr(handoff, bound, ahead * (8 if bound == "UNUSED" else 1))
    engine = sharing(fake_engine(PLAIN, 400, 0, max_num_seqs=3), Shelf())
    names = [
        engine.add_request(random_ids(length), SamplingParams(max_tokens=3))
        for length in (200, 3, 90, 5, longest, 33, 31) * 4
    ]
    while engine.busy:
        engine.step()
        order = [names.index(seq.request_id) for seq in engine.scheduler]
        assert order == sorted(order)
        # What is found for later ones would not last.
        assert sum(map(len, engine.scheduler.waiting)) < handoff.AHEAD + longest
        looked_up = sum(len(seqs[0]) for seqs, _ in engine.handoff._lookups)
        assert looked_up == engine.handoff._ahead < ahead + longest
    engine.close()

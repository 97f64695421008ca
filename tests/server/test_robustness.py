"""Queues that are full, clients that leave, steps that fail: others go on, pages come back."""

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.requests import Request

from gossamer.engine import WorkerDiedError
from gossamer.server import Limits
from gossamer.server.sse import unless_disconnected
from tests.server.live import MODEL, SPARSE, SlowSteps, serving, wait_until

LONG = {"model": MODEL, "prompt": "The sea", "max_tokens": 400, "ignore_eos": True}


def pages_in_use(live):
    return sum(
        pool.in_use
        for llm in live.llms.values()
        for pool in (llm.engine.manager.stored, llm.engine.manager.dense)
    )


# ---- clients that leave -------------------------------------------------------------------


@pytest.mark.parametrize("kv", ["dense", SPARSE])
def test_who_leaves_a_stream_frees_its_pages(live, kv):
    with SlowSteps(live.llms[kv], 0.01), httpx.Client(timeout=60) as client:
        body = LONG | {"kv": kv, "stream": True}
        with client.stream("POST", live.url + "/v1/completions", json=body) as stream:
            next(stream.iter_lines())
            assert pages_in_use(live) > 0
        wait_until(lambda: pages_in_use(live) == 0)
    assert live.llms[kv].engine.stats.output_tokens
    live.assert_empty()


def test_who_does_not_wait_for_the_whole_frees_its_pages(live):
    with SlowSteps(live.llm, 0.02):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(live.url + "/v1/completions", json=LONG, timeout=0.3)
        wait_until(lambda: live.gateway.in_flight == 0 and pages_in_use(live) == 0)


def test_who_leaves_before_the_first_token(live):
    with SlowSteps(live.llm) as slow:
        slow.gate.clear()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(live.url + "/v1/completions", json=LONG | {"stream": True}, timeout=0.3)
        wait_until(lambda: live.gateway.in_flight == 0)
    live.assert_empty()


def test_a_task_that_is_cancelled_when_its_answer_is_there_ends():
    """The same function cancels tasks of its own, and must not mistake this one for them."""

    async def cancelled():
        cleaning = asyncio.Event()

        async def receive():
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await asyncio.sleep(0)

        request = Request({"type": "http"}, receive)
        task = asyncio.create_task(unless_disconnected(request, asyncio.sleep(0.01)))
        await cleaning.wait()
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(cancelled())


def test_the_others_of_a_batch_go_on(live):
    expected = [live.text(f"w{i} ", max_tokens=60) for i in range(4)]
    with SlowSteps(live.llm, 0.002), ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(live.text, f"w{i} ", max_tokens=60) for i in range(4)]
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(live.url + "/v1/completions", json=LONG, timeout=0.05)
        assert [answer.result(60) for answer in answers] == expected


# ---- limits -------------------------------------------------------------------------------


def test_a_full_queue_refuses(tiny):
    limits = Limits(queue=1)
    with (
        serving(tiny, settings={"limits": limits}, max_num_seqs=2) as live,
        SlowSteps(live.llm) as slow,
        ThreadPoolExecutor(3) as pool,
    ):
        slow.gate.clear()
        first = [pool.submit(live.complete) for _ in range(3)]
        wait_until(lambda: live.gateway.in_flight == 3)
        refused = live.complete()
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert live.get("/health").status_code == 200
        never = live.complete(n=4)  # waiting would not help
        assert never.json()["error"]["message"] == "prompts times n is 4; must be 1 to 3"
        slow.gate.set()
        assert [answer.result().status_code for answer in first] == [200] * 3
        assert live.complete().status_code == 200


def test_a_request_has_so_much_time(tiny):
    limits = Limits(timeout=0.2)
    with serving(tiny, settings={"limits": limits}) as live:
        with SlowSteps(live.llm, 0.05):
            late = live.complete(max_tokens=200)
            assert late.status_code == 504
            assert late.json()["error"]["code"] == "timeout"
            stream = live.complete(max_tokens=200, stream=True)
            assert '"code": "timeout"' in stream.text
            assert stream.text.endswith("data: [DONE]\n\n")
        live.assert_empty()
        assert live.text()


def test_output_tokens_have_a_limit(tiny):
    with serving(tiny, settings={"limits": Limits(output_tokens=10)}) as live:
        refused = live.complete(max_tokens=11)
        assert "max_tokens is 11; must be 1 to 10" in refused.json()["error"]["message"]
        assert live.complete(max_tokens=10).json()["usage"]["completion_tokens"] == 10
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
        answer = live.post("/v1/chat/completions", **body)  # as many as there may be
        assert answer.json()["usage"]["completion_tokens"] == 10


# ---- steps that fail ----------------------------------------------------------------------


def fail_once(llm, error, after=0):
    """The step after so many raises; later ones work."""
    executor, steps = llm.engine.executor, iter(range(10**6))
    run = executor.run

    def broken(step):
        logits = run(step)
        if next(steps) == after:
            executor.run = run
            raise error
        return logits

    executor.run = broken


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_failed_step_is_an_error_with_an_id(live, stream, n, caplog):
    expected = live.text()
    fail_once(live.llm, RuntimeError("the device is on fire"))
    answer = live.complete(stream=stream, n=n)
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert re.fullmatch(r"err-[0-9a-f]{12}", error["code"])
    assert "fire" not in answer.text
    assert error["code"] in caplog.text
    assert "the device is on fire" in caplog.text
    assert live.text() == expected
    assert live.get("/health").status_code == 200
    live.assert_empty()


def test_a_stream_says_that_it_failed(live):
    fail_once(live.llm, RuntimeError("the device is on fire"), after=5)
    answer = live.complete(stream=True, max_tokens=50)
    assert answer.status_code == 200  # it was too late
    *chunks, error, done = answer.text.strip().split("\n\n")
    assert len(chunks) >= 1
    assert '"error"' in error
    assert '"code": "err-' in error
    assert done == "data: [DONE]"
    live.assert_empty()


def test_only_requests_of_the_step_fail(live):
    """One engine's failure is no business of the other's."""
    with SlowSteps(live.llms[SPARSE], 0.005), ThreadPoolExecutor(1) as pool:
        other = pool.submit(live.complete, max_tokens=60, kv=SPARSE)
        fail_once(live.llms["dense"], RuntimeError("on fire"))
        assert live.complete(kv="dense").status_code == 500
        assert other.result().status_code == 200


def test_a_scheduler_that_raises_does_not_spin(live):
    """Nothing was computed and nobody was ended; then all of that engine's requests are."""
    scheduler = live.llm.engine.scheduler
    schedule = scheduler.schedule

    def broken():
        scheduler.schedule = schedule
        raise AssertionError("an invariant is broken")

    scheduler.schedule = broken
    assert live.complete().status_code == 500
    live.assert_empty()
    assert live.text()


def test_an_engine_that_fails_again_and_again_is_not_healthy(tiny):
    with serving(tiny) as live:
        run = live.llm.engine.executor.run
        live.llm.engine.executor.run = lambda step: (_ for _ in ()).throw(WorkerDiedError("gone"))
        for _ in range(3):
            assert live.complete().status_code == 500
        for path in ("/health", "/ready"):
            answer = live.get(path)
            assert (answer.status_code, answer.json()) == (503, {"status": "failing"})
        live.llm.engine.executor.run = run
        assert live.complete().status_code == 200
        assert live.get("/health").status_code == 200


def test_a_bug_in_a_route_is_an_error_with_an_id(live, monkeypatch, caplog):
    def bug(*_):
        raise KeyError("secret detail")

    monkeypatch.setattr(live.gateway, "resolve_kv", bug)
    answer = live.complete()
    assert answer.status_code == 500
    assert answer.json()["error"]["code"].startswith("err-")
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text


# ---- the end ------------------------------------------------------------------------------


def test_draining_finishes_what_runs(tiny):
    with serving(tiny) as live, SlowSteps(live.llm, 0.01), ThreadPoolExecutor(1) as pool:
        running = pool.submit(live.complete, max_tokens=40)
        wait_until(lambda: live.gateway.in_flight == 1)

        async def told():
            live.server.stop()
            return await live.gateway.status()

        events = live.events
        assert asyncio.run_coroutine_threadsafe(told(), events).result(5) == "draining"
        answer = running.result(30)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 40
        with pytest.raises(httpx.ConnectError):
            live.complete()


def test_draining_ends_after_its_time(tiny):
    """And a stream that is cut has no pages left."""
    with serving(tiny, settings={"limits": Limits(drain=1)}) as live, SlowSteps(live.llm, 0.05):
        seen = []

        def read():
            try:
                seen.append(live.complete(max_tokens=400, stream=True))
            except httpx.HTTPError as error:
                seen.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: live.llm.engine.stats.output_tokens > 2)
        live.server.stop()
        reader.join(20)
        assert not reader.is_alive()
        assert seen
    assert pages_in_use(live) == 0

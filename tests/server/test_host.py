"""Connections between API and engines: lost, not read, full; and clients that do not read."""

import asyncio
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gossamer.engine import SamplingParams
from gossamer.server import Limits
from gossamer.server import host as host_module
from gossamer.server.admission import Admission
from gossamer.server.events import EngineRequest
from gossamer.server.wire import (
    Abort,
    Add,
    Call,
    Hello,
    Reply,
    Step,
    encode,
    receive,
    receive_async,
)
from tests.server.live import MODEL, SPARSE, SlowSteps, serving, wait_until

PARAMS = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)


@pytest.fixture
def peer(live):
    """The other end of a connection, after the hello."""
    ours, theirs = socket.socketpair()
    live.host.attach(theirs)
    ours.settimeout(30)
    assert set(receive(ours).info.engines) == {"dense", SPARSE}
    yield ours
    ours.close()


def events_of(peer, number):
    """Until the request is over."""
    found = []
    while True:
        message = receive(peer)
        assert isinstance(message, Step)
        found += [event for n, event in message.numbered if n == number]
        if found and (found[-1].finish_reason is not None):
            return found


def test_messages_of_any_size_and_cut():
    messages = [Call(1, "state"), Abort(3, 2), Add(()), Reply(1, b"x" * 300_000), Step([])]
    data = b"".join(map(encode, messages))
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(
            lambda: [theirs.sendall(data[i : i + 7]) for i in range(0, len(data), 7)]
        )
        assert [receive(ours) for _ in messages] == messages
        sent.result()
        theirs.close()
        with pytest.raises(EOFError):
            receive(ours)

    async def read():
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = [await receive_async(reader) for _ in messages]
        with pytest.raises(EOFError):
            await receive_async(reader)
        return found

    assert asyncio.run(read()) == messages


def test_a_request_over_a_connection(live, peer):
    expected = live.host.loop.call(
        lambda: live.llm.generate([[5] * 40], SamplingParams(**greedy()))[0]
    ).result(60)
    peer.sendall(encode(Add((EngineRequest(7, "dense", (5,) * 40, PARAMS),))))
    events = events_of(peer, 7)
    assert [t for e in events for t in e.token_ids] == expected.outputs[0].token_ids
    assert events[-1].finish_reason == "length"
    assert events[-1].cached_tokens == 32


def greedy():
    return {"temperature": 0, "max_tokens": 30, "ignore_eos": True}


def test_what_is_no_prompt_is_refused_alone(live, peer):
    bad, good = EngineRequest(1, "dense", (10**6,), PARAMS), EngineRequest(2, "dense", (5,), PARAMS)
    peer.sendall(encode(Add((bad, good))))
    (event,) = events_of(peer, 1)
    assert event.failure.status == 400
    assert "a token id is 1000000" in event.failure.message
    assert events_of(peer, 2)[-1].finish_reason == "length"


def test_one_output_of_several_is_ended(live, peer):
    params = SamplingParams(n=2, max_tokens=200, ignore_eos=True, detokenize=False, seed=1)
    with SlowSteps(live.llm, 0.002):
        peer.sendall(encode(Add((EngineRequest(1, "dense", (5,), params),))))
        receive(peer)
        peer.sendall(encode(Abort(1, 0)))
        events = events_of(peer, 1)
    assert events[-1].output == 1
    assert sum(len(e.token_ids) for e in events if e.output == 1) > 190
    assert sum(len(e.token_ids) for e in events if e.output == 0) < 100


def test_who_leaves_ends_what_it_sent(live, peer):
    params = SamplingParams(max_tokens=400, ignore_eos=True, detokenize=False)
    with SlowSteps(live.llm, 0.01):
        peer.sendall(encode(Add((EngineRequest(1, "dense", (5,), params),))))
        receive(peer)
        peer.close()
        wait_until(lambda: live.host.state().in_flight == 0)
    live.assert_empty()


def test_who_does_not_read_is_dropped_and_others_go_on(live, peer, monkeypatch):
    expected = live.text()
    params = SamplingParams(max_tokens=400, ignore_eos=True, detokenize=False, n=8, logprobs=20)
    peer.sendall(encode(Add((EngineRequest(1, "dense", (5,), params),))))
    with monkeypatch.context() as patch:
        patch.setattr(host_module, "MOST_UNREAD", 10_000)
        wait_until(lambda: live.host.state().in_flight == 0)
    assert live.text() == expected
    with pytest.raises((EOFError, OSError)):
        events_of(peer, None)


def test_a_message_that_is_none_ends_its_connection_alone(live, peer, caplog):
    peer.sendall(encode(Call(1, "no such call")))
    with pytest.raises(EOFError):
        receive(peer)
    assert "its connection ends" in caplog.text
    assert live.text()


def test_a_connection_that_is_lost(live):
    """Who waits is told, in a stream as well, and later requests have a new connection."""
    (connection,) = live.host._connections
    with SlowSteps(live.llm, 0.02), ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(live.complete, max_tokens=300)
        stream = pool.submit(live.complete, max_tokens=300, stream=True)
        running = live.llm.engine.scheduler.running
        wait_until(lambda: sum(len(seq.output_ids) > 10 for seq in list(running)) == 2)
        connection.close()
        answer = waiting.result(30)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_down")
        assert answer.headers["retry-after"] == "5"
        *_, error, done = stream.result(30).text.strip().split("\n\n")
        assert ('"engine_down"' in error, done) == (True, "data: [DONE]")
    wait_until(lambda: live.get("/ready").status_code == 200)
    assert live.text()


def test_without_an_engine(live, monkeypatch):
    """Between two engine processes."""
    (connection,) = live.host._connections

    async def nowhere():
        raise OSError("nobody listens")

    with monkeypatch.context() as patch:
        patch.setattr(live.gateway._link, "_connect", nowhere)
        connection.close()
        wait_until(lambda: not live.gateway._link.up)
        for path, code in (("/ready", 503), ("/health", 200)):  # another one is being loaded
            answer = live.get(path)
            assert (answer.status_code, answer.json()) == (code, {"status": "down"})
        assert live.complete().json()["error"]["code"] == "engine_down"
        assert live.get("/metrics").status_code == 503
        assert live.get("/v1/models").status_code == 200
    wait_until(lambda: live.get("/ready").status_code == 200)
    assert live.text()


def test_a_client_that_never_reads(live):
    """The engine does not wait for it: the output is computed, and its pages come back."""
    body = {"model": MODEL, "prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "n": 16}
    content = json.dumps(body | {"stream": True, "logprobs": 5}).encode()
    host, port = live.url.removeprefix("http://").split(":")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        before = live.llm.engine.stats.output_tokens
        wait_until(lambda: live.llm.engine.stats.output_tokens - before >= 16 * 400)
        wait_until(lambda: live.host.state().in_flight == 0)
        assert live.text()
    live.assert_empty()


def test_ten_thousand_requests_wait(tiny):
    """And leave: half of them one by one, the others with their connection."""
    limits = Limits(queue=10_000)
    with (
        serving(tiny, settings={"limits": limits}, max_num_seqs=4) as live,
        SlowSteps(live.llm) as slow,
    ):
        slow.gate.clear()
        ours, theirs = socket.socketpair()
        live.host.attach(theirs)
        receive(ours)
        for number in range(10_004):
            ours.sendall(encode(Add((EngineRequest(number, "dense", (5, 6), PARAMS),))))
        wait_until(lambda: live.host.state().in_flight == 10_004)
        assert live.get("/health").status_code == 200
        refused = live.complete()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        for number in range(0, 10_004, 2):
            ours.sendall(encode(Abort(number)))
        slow.gate.set()
        wait_until(lambda: live.host.state().in_flight <= 5002)
        ours.close()
        live.assert_empty()
        assert live.text()


def test_hello_is_a_copy(live, peer):
    """What the API changes in its tokenizer is none of the engine's business."""
    ours, theirs = socket.socketpair()
    with ours:
        live.host.attach(theirs)
        hello = receive(ours)
        assert isinstance(hello, Hello)
        assert hello.info.tokenizer is not live.llm.tokenizer
        assert hello.info.tokenizer.decode([5, 6]) == live.llm.tokenizer.decode([5, 6])


def test_admission_counts_for_all_threads():
    admission, refused = Admission({"dense": 2, "other": 1}, 30), []

    def enter():
        refused.extend(f for f in (admission.enter("dense", 2) for _ in range(10)) if f)

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (admission.in_flight, len(refused)) == (32, 80 - 16)
    assert refused[0].status == 429
    assert "32 sequences run or wait; must be at most 32 with the 2" in refused[0].message
    assert admission.enter("other", 31) is None
    admission.leave("dense", 2)
    admission.took(100.0)
    assert admission.enter("dense", 2) is None
    assert 1 < admission.enter("dense", 2).retry_after <= 60

"""Numbers of a load test, against those computed by hand."""

import json

import pytest

from gossamer.server.load.client import ClientResult, Exchange
from gossamer.server.load.goodput import goodput, met
from gossamer.server.load.measures import quantiles, record
from gossamer.server.load.report import summary, table
from gossamer.server.load.schedule import Load, ScheduledRequest
from gossamer.server.load.sweep import warnings
from gossamer.server.load.target import Target
from gossamer.workloads.bounds import Bounds

ENGINES = [{"kv": "dense", "device": "cpu"}, {"kv": "sparse:k=8,v=8", "device": "cpu"}]
TARGET = Target("http://x", None, {"model": "tiny", "version": "1", "engines": ENGINES})


def answer(sent, chunks, ended, tokens, **more):
    facts = {"prompt_tokens": 10, "kv": "sparse:k=8,v=8", **more}
    return ClientResult(sent, list(chunks), ended=ended, tokens=tokens, **facts)


# TTFT 500, 250, 1000 ms; TPOT 250, none, 125 ms; whole 1500, 500, 2000 ms.
FIRST = answer(1.0, [1.5, 1.75, 2.5], 2.5, 5)
SHORT = answer(2.0, [2.25], 2.5, 1)
SLOW = answer(3.0, [4.0, 4.25, 5.0], 5.0, 9)
REFUSED = ClientResult(4.0, ended=4.5, error="status 429", message="the queue is full")
LEFT = ClientResult(4.0, [4.5], ended=4.75, left=True)
ALL = [FIRST, SHORT, SLOW, REFUSED, LEFT]


def test_what_a_client_saw():
    assert (FIRST.first, FIRST.gaps, FIRST.per_token, FIRST.whole) == (0.5, [0.25, 0.75], 0.25, 1.5)
    assert (SHORT.first, SHORT.gaps, SHORT.per_token) == (0.25, [], None)
    assert (ClientResult(1.0).first, ClientResult(1.0).gaps) == (None, [])


def test_percentiles():
    """Of 0, 1, ..., 200 ms, the one in the hundred is twice the percentile."""
    found = quantiles([n / 1000 for n in reversed(range(201))])
    expected = {"p50": 100, "p90": 180, "p95": 190, "p99": 198, "mean": 100}
    assert found == pytest.approx(expected)
    assert quantiles([0.001, 0.002])["p50"] == pytest.approx(1.5)
    assert quantiles([]) == {}


def test_a_record():
    found = record(TARGET, Load(requests=5, workload="chat"), ALL, Bounds(ttft=600), busy=0.5)
    assert found["kv"] == "sparse:k=8,v=8"
    assert found["seconds"] == 4.0  # from the first request sent to the last answer
    assert (found["completed"], found["left"], found["errors"]) == (3, 1, {"status 429": 1})
    assert (found["prompt_tokens"], found["output_tokens"]) == (30, 15)
    assert found["requests_per_second"] == 3 / 4
    assert found["output_tokens_per_second"] == 15 / 4
    assert found["total_tokens_per_second"] == 45 / 4
    assert found["ttft_ms"]["p50"] == 500
    assert found["itl_ms"]["mean"] == pytest.approx((250 + 750 + 250 + 750) / 4)
    assert found["tpot_ms"]["p50"] == pytest.approx((250 + 125) / 2)
    assert found["e2e_ms"]["p50"] == 1500
    assert found["client"]["busy"] == 0.5
    assert json.loads(json.dumps(found))["load"]["workload"] == "chat"
    assert "goodput 0.50 requests/s within bounds (50%)" in summary(found)
    assert table(found).row_count == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft:500", [FIRST, SHORT]),
        ("ttft:499", [SHORT]),
        ("tpot:250", [FIRST, SHORT, SLOW]),
        ("tpot:200", [SHORT, SLOW]),
        ("e2e:1500", [FIRST, SHORT]),
        ("ttft:1000, tpot:130, e2e:1999", [SHORT]),
        ("e2e:0.5", []),
    ],
)
def test_goodput(text, expected):
    bounds = Bounds.parse(text, "--goodput")
    assert [result for result in ALL if met(bounds, result)] == expected
    found = goodput(bounds, ALL, seconds=4.0)
    assert found["requests_per_second"] == len(expected) / 4
    assert found["share"] == len(expected) / 4  # who left on purpose is not counted, who failed is


def test_goodput_of_clients_that_all_left():
    assert goodput(Bounds(e2e=1), [LEFT], seconds=1.0)["share"] == 0


@pytest.mark.parametrize("text", ["", "ttft", "ttft:", "ttft:0", "ttft:-5", "ttft:x", "ttft:inf"])
@pytest.mark.parametrize("before", ["", "e2e:5,"])
def test_bounds_that_are_no_numbers(text, before):
    with pytest.raises(ValueError, match="--goodput has"):
        Bounds.parse(before + text, "--goodput")


@pytest.mark.parametrize("text", ["itl:5", "ttft:5,ttft:6", "TTFT:5"])
def test_bounds_of_other_names(text):
    with pytest.raises(ValueError, match="each of ttft, tpot, e2e at most once"):
        Bounds.parse(text, "--goodput")


def chunk(text, **more):
    content = {"choices": [{"text": text}]} if text is not None else {"choices": []}
    return b"data: " + json.dumps(content | more).encode()


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
LAST = chunk(None, usage=USAGE, gossamer={"kv": "dense"})


def parsed(*events):
    exchange = Exchange(ScheduledRequest((1,), 2, 0.0), b"")
    exchange.events = list(enumerate(events))
    return exchange.parsed()


def test_a_stream():
    found = parsed(b": a comment", chunk("a"), chunk(""), chunk("bc"), LAST, b"data: [DONE]")
    assert (found.text, found.chunks, found.error) == ("abc", [1, 3], None)
    assert (found.prompt_tokens, found.tokens, found.cached, found.kv) == (3, 2, 1, "dense")


def test_a_stream_that_breaks_off():
    assert parsed(chunk("a")).error == "the stream ended early"
    error = b'data: {"error": {"code": "timeout", "message": "too slow"}}'
    found = parsed(chunk("a"), error, b"data: [DONE]")
    assert (found.error, found.message) == ("error timeout", "too slow")


def test_clients_that_are_too_slow_are_told():
    for busy, seconds, told in ((0.9, 10, True), (0.2, 10, False), (0.9, 0.1, False)):
        found = record(TARGET, Load(), ALL[:3], busy=busy) | {"seconds": seconds}
        assert any("--processes" in line for line in warnings(found, ALL[:3])) == told

"""`gossamer bench serve` and the clients behind it."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks.end_to_end import load_client
from gossamer.cli.main import app
from gossamer.server.load.processes import clients
from gossamer.server.load.schedule import Load
from gossamer.server.load.target import probe
from gossamer.workloads.named import WORKLOADS
from tests.server.live import SPARSE, SlowSteps, serving


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", "serve", *map(str, arguments)])


def records_in(folder):
    return [json.loads(line) for line in (folder / "serve.jsonl").read_text().splitlines()]


SMALL = ("--requests", 12, "--concurrency", 4, "--input", "5,40", "--output", "3,12")


def test_a_load_with_shared_prefixes(live, tmp_path):
    prefixes = ("--prefix", 128, "--prefixes", 2, "--kv", SPARSE, "--seed", 3)
    result = invoke(live.url, *SMALL, *prefixes, "--results", tmp_path, "--model", "tiny")
    assert result.exit_code == 0, result.output
    assert "12 completed" in result.output
    assert "errors: none" in result.output
    (found,) = records_in(tmp_path)
    assert (found["kv"], found["completed"], found["errors"]) == (SPARSE, 12, {})
    assert (found["load"]["requests"], found["load"]["workload"]) == (12, None)
    assert found["output_tokens"] == sum(p.output for p in scheduled())
    assert found["prompt_tokens"] == sum(len(p.ids) for p in scheduled())
    assert 128 < found["cached_tokens"] <= 12 * 128
    assert found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"] <= found["e2e_ms"]["p99"]
    assert "warning" not in result.output


def scheduled():
    load = Load(
        requests=12, inputs=(5, 40), outputs=(3, 12), prefix=128, prefixes=2, kv=SPARSE, seed=3
    )
    return load.schedule(97)


def test_a_schedule():
    requests = scheduled()
    assert requests == scheduled()
    assert len({request.ids[:128] for request in requests}) == 2
    assert all(
        5 <= len(request.ids) - 128 <= 40 and 3 <= request.output <= 12 for request in requests
    )
    assert {request.at for request in requests} == {0.0}
    timed = Load(requests=2000, rate=10.0).schedule(50)
    assert timed[-1].at == pytest.approx(200, rel=0.15)
    leaving = Load(requests=1000, leaving=0.2).schedule(50)
    assert sum(request.leave is not None for request in leaving) == pytest.approx(200, rel=0.3)


def test_a_schedule_has_the_requests_of_the_offline_engine():
    load = Load(requests=50, seed=4)
    sent = [(request.ids, request.output) for request in load.schedule(97)]
    assert sent == [(request.ids, request.output) for request in load.draw(97, seed=4)]


def test_rates_have_equal_lengths_and_no_prompt_in_common():
    slow, fast = (Load(requests=50, rate=rate).schedule(97) for rate in (1.0, 4.0))
    assert [len(r.ids) for r in slow] == [len(r.ids) for r in fast]
    assert [r.output for r in slow] == [r.output for r in fast]
    assert [r.at for r in slow] == pytest.approx([4 * r.at for r in fast])
    assert not {r.ids[:32] for r in slow} & {r.ids[:32] for r in fast}


def test_several_rates(live, tmp_path):
    numbers = ("--workload", "chat", "--requests", 8, "--prefix", 64, "--input", "5,9")
    bounds = ("--output", "3,6", "--goodput", "ttft:60000,e2e:60000", "--warm-up", 2)
    result = invoke(
        live.url, *numbers, *bounds, "--rates", "40,80.5", "--results", tmp_path, "--seed", 5
    )
    assert result.exit_code == 0, result.output
    assert "40 requests/s: 8 completed" in result.output
    assert "goodput/s" in result.output
    first, second = records_in(tmp_path)
    assert [found["load"]["rate"] for found in (first, second)] == [40, 80.5]
    assert first["load"] == second["load"] | {"rate": 40}
    chat = WORKLOADS["chat"]
    load = Load(workload="chat", requests=8, prefix=64, prefixes=chat.prefixes)
    load = replace(load, inputs=(5, 9), outputs=(3, 6), seed=5, rate=40.0)
    assert Load(**first["load"]) == replace(load, inputs=[5, 9], outputs=[3, 6])
    assert first["output_tokens"] == sum(r.output for r in load.schedule(97))
    assert first["goodput"]["share"] == 1
    assert first["goodput"]["requests_per_second"] == first["requests_per_second"]
    assert first["goodput"]["bounds_ms"] == {"ttft": 60000, "tpot": None, "e2e": 60000}


def test_prompts_that_the_server_knows_are_told(live):
    same = ("--requests", 4, "--input", 100, "--output", 2, "--seed", 77)
    assert "prefix cache" not in invoke(live.url, *same).stderr
    assert "prompt tokens were in the server's prefix cache" in invoke(live.url, *same).stderr


@pytest.mark.parametrize("rates", [(), ("--rates", "50,100", "--goodput", "ttft:9000,tpot:900")])
def test_figures(live, tmp_path, rates):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "deep" / "load.png"
    result = invoke(live.url, *SMALL, *rates, "--plot", figure)
    assert result.exit_code == 0, result.output
    assert figure.read_bytes()[:4] == b"\x89PNG"


def test_processes_of_clients(live):
    """Results come in the order of the requests; nobody has more slots than all together."""
    load = Load(requests=7, inputs=(5, 9), outputs=(1, 12), concurrency=3)
    with clients(2) as sending:
        run = sending.send(probe(live.url), load)
    assert [result.tokens for result in run.results] == [r.output for r in load.schedule(97)]
    assert all(result.error is None for result in run.results)
    opened = [(result.sent, 1) for result in run.results]
    closed = [(result.ended, -1) for result in run.results]
    changes = sorted(opened + closed)
    assert max(sum(n for _, n in changes[: i + 1]) for i in range(len(changes))) <= 3


def test_what_clients_cost(capsys):
    """benchmarks.end_to_end.load_client: all tokens arrive, in the steps in which they are sent."""
    load_client.measure(streams=8, tokens=10, step=20.0, processes=1)
    told = capsys.readouterr().out
    latency = float(re.search(r"inter-token latency ([\d.]+) ms \(p50\)", told)[1])
    assert 10 < latency < 40
    assert "tokens/s of 400 that were to be sent" in told


def test_clients_that_leave(live):
    with SlowSteps(live.llm, 0.002):
        result = invoke(live.url, *SMALL[:4], "--input", 5, "--output", 40, "--leaving", 0.5)
    assert result.exit_code == 0, result.output
    assert "left on purpose" in result.output


def test_errors_are_counted(live):
    result = invoke(live.url, *SMALL, "--input", "600")
    assert result.exit_code == 1
    assert "errors: 12 x status 400" in result.output
    assert "the first error is status 400: the prompt has 600 tokens" in result.stderr


def test_another_model(live):
    result = invoke(live.url, "--model", "large")
    assert result.exit_code == 2
    assert f"model is 'large'; the server at {live.url} has 'tiny'" in result.output


def test_a_server_with_a_key(tiny):
    with serving(tiny, settings={"api_key": "secret"}) as live:
        refused = invoke(live.url, *SMALL, "--api-key", "wrong")
        allowed = invoke(live.url, *SMALL, "--api-key", "secret")
    assert refused.exit_code == 2
    assert f"{live.url}: the server wants another API key" in refused.output
    assert "12 completed" in allowed.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:1",), "http://127.0.0.1:1: no Gossamer server answers there"),
        (("nonsense",), "no Gossamer server answers there"),
        (("--requests", 0), "requests is 0; must be at least 1"),
        (("--rate", -1), "rate is -1.0; must be above 0"),
        (("--rate", 1, "--rates", "1,2"), "--rate and --rates exclude each other"),
        (("--rates", "1,0"), "--rates is '1,0'; must be different numbers above 0"),
        (("--rates", "2,2"), "--rates is '2,2'; must be different numbers above 0"),
        (("--rates", "fast"), "--rates is 'fast'; must be different numbers above 0"),
        (("--leaving", 2), "leaving is 2.0; must be 0 to 1"),
        (("--concurrency", 0), "concurrency is 0; must be at least 1"),
        (("--processes", 0), "processes is 0; must be at least 1"),
        (("--input", "9,3"), "--input is '9,3'; must be MIN,MAX"),
        (("--workload", "huge"), "workload is 'huge'; must be one of mixed, small, chat, long"),
        (("--goodput", "itl:5"), "--goodput has 'itl:5'; must be NAME:MILLISECONDS"),
        (("--plot", "x.doc"), "--plot is 'x.doc'; must end in .png"),
    ],
)
def test_bad_options(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output

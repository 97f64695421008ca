"""`gossamer bench serve` and the clients behind it."""

import json

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app
from gossamer.server.load.client import ClientResult
from gossamer.server.load.report import quantiles
from gossamer.server.load.workload import Load
from tests.server.live import SPARSE, SlowSteps


def invoke(*arguments):
    return CliRunner().invoke(app, ["bench", "serve", *map(str, arguments)])


SMALL = ("--requests", 12, "--concurrency", 4, "--input", "5,40", "--output", "3,12")


def test_a_load_with_shared_prefixes(live, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "deep" / "load.png"
    prefixes = ("--prefix", 128, "--prefixes", 2, "--kv", SPARSE, "--seed", 3)
    files = ("--results", tmp_path, "--plot", figure)
    result = invoke(live.url, *SMALL, *prefixes, *files)
    assert result.exit_code == 0, result.output
    assert "12 completed" in result.output
    assert "errors: none" in result.output
    found = json.loads((tmp_path / "serve.jsonl").read_text())
    assert (found["kv"], found["completed"], found["errors"]) == (SPARSE, 12, {})
    assert found["load"]["requests"] == 12
    assert found["output_tokens"] == sum(p.output for p in scheduled())
    assert found["cached_tokens"] > 128
    assert found["ttft_ms"]["p50"] <= found["ttft_ms"]["p99"] <= found["latency_ms"]["p99"]
    assert figure.read_bytes()[:4] == b"\x89PNG"


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


def test_clients_that_leave(live):
    with SlowSteps(live.llm, 0.002):
        result = invoke(live.url, *SMALL[:4], "--input", 5, "--output", 40, "--leaving", 0.5)
    assert result.exit_code == 0, result.output
    assert "left on purpose" in result.output


def test_errors_are_counted(live):
    result = invoke(live.url, *SMALL, "--input", "600")
    assert result.exit_code == 1
    assert "errors: 12 x status 400" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:1",), "http://127.0.0.1:1: no Gossamer server answers there"),
        (("nonsense",), "no Gossamer server answers there"),
        (("--requests", 0), "requests is 0; must be at least 1"),
        (("--rate", -1), "rate is -1.0; must be above 0"),
        (("--leaving", 2), "leaving is 2.0; must be 0 to 1"),
        (("--input", "9,3"), "--input is '9,3'; must be MIN,MAX"),
        (("--plot", "x.doc"), "--plot is 'x.doc'; must end in .png"),
    ],
)
def test_bad_options(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_what_a_client_saw():
    seen = ClientResult(1.0, [1.5, 1.75, 2.25])
    assert (seen.first, seen.gaps) == (0.5, [0.25, 0.5])
    assert (ClientResult(1.0).first, ClientResult(1.0).gaps) == (None, [])
    assert quantiles([0.001, 0.002, 0.003])["p50"] == 2.0
    assert quantiles([]) == {}

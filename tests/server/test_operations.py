"""Health, metrics, statistics, profiler."""

import asyncio
import json

from prometheus_client.parser import text_string_to_metric_families

from gossamer.engine import SamplingParams
from tests.server.live import MODEL, SPARSE, SlowSteps, serving, wait_until


def metrics_of(live):
    """(name, label values) -> value"""
    families = text_string_to_metric_families(live.get("/metrics").text)
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_health(live):
    for path in ("/health", "/ready"):
        answer = live.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_draining_is_alive_and_not_ready(live):
    live.gateway.draining = True
    try:
        for path, code in (("/health", 200), ("/ready", 503)):
            answer = live.get(path)
            assert (answer.status_code, answer.json()) == (code, {"status": "draining"})
    finally:
        live.gateway.draining = False


def test_metrics_count(tiny):
    with serving(tiny, (SPARSE,)) as live:
        prompt = "The sea is everything. " * 10
        for _ in range(2):
            live.text(prompt, max_tokens=5)
        live.complete(temperature=9)
        found = metrics_of(live)

    def value(name, *labels):
        return found[f"gossamer_{name}", *sorted((SPARSE, *labels))]

    assert value("requests_total", "length") == 2
    assert value("output_tokens_total") == 10
    assert value("prefix_hits_total") == 1
    assert value("prefix_cached_tokens_total") > 100
    assert value("time_to_first_token_seconds_count") == 2
    assert value("inter_token_latency_seconds_count") == 8
    assert value("request_duration_seconds_count") == 2
    assert value("preemptions_total") == 0
    assert value("sequences_running") == 0
    for pool in ("stored", "dense"):
        states = [value("kv_pages", pool, s) for s in STATES]
        assert states[0] == 0
        assert states[1] > 0
        assert sum(states) == getattr(live.llm.engine.manager, pool).size
    assert found["gossamer_http_responses_total", *sorted(("POST", "/v1/completions", "200"))] == 2
    assert found["gossamer_http_responses_total", *sorted(("POST", "/v1/completions", "400"))] == 1


STATES = ("used", "cached", "free")


def test_statistics_while_it_runs(tiny):
    """Also what is saved, while a long prompt is in a sparse cache."""
    # Snapshots are taken every 50 ms, in which a tiny model could end: 10 ms a step.
    with serving(tiny, ("dense", SPARSE)) as live, SlowSteps(live.llms[SPARSE], 0.01) as slow:
        subscription = None

        async def ask():
            nonlocal subscription
            params = SamplingParams(max_tokens=50, ignore_eos=True)
            subscription = live.gateway.submit(SPARSE, [(5,) * 400], params)

        run_in(live, ask)
        wait_until(lambda: live.host.loop.snapshots[SPARSE].output_tokens > 3)
        slow.gate.clear()
        stats = live.get("/v1/gossamer/stats").json()
        dense, sparse = stats["engines"]
        assert (stats["model"], stats["status"], stats["in_flight"]) == (MODEL, "ok", 1)
        assert (dense["kv"], dense["running"], dense["kv_bytes"]) == ("dense", 0, 0)
        assert (sparse["kv"], sparse["running"], sparse["waiting"]) == (SPARSE, 1, 0)
        assert 0 < sparse["kv_bytes"] < sparse["kv_bytes_dense"]
        assert sparse["stored_pages"]["used"] > 5
        assert sparse["dense_pages"]["used"] >= 2
        assert sparse["tokens_per_second"] > 0
        assert sparse["decode"]["kernel"].startswith("cpu")
        assert sparse["decode"]["against_dense"] > 0
        slow.gate.set()

        async def leave():
            subscription.abort()

        run_in(live, leave)


def run_in(live, function):
    """In the server's event loop."""
    return asyncio.run_coroutine_threadsafe(function(), live.events).result(30)


def test_the_profiler(tiny, tmp_path):
    with serving(tiny, settings={"profiles": tmp_path / "traces"}) as live:
        assert live.post("/v1/gossamer/profiler/stop").status_code == 409
        assert live.post("/v1/gossamer/profiler/start").json() == {"status": "running"}
        assert live.post("/v1/gossamer/profiler/start").status_code == 409
        live.text()
        name = live.post("/v1/gossamer/profiler/stop").json()["trace"]
    trace = json.loads((tmp_path / "traces" / name).read_text())
    assert any("aten::" in event.get("name", "") for event in trace["traceEvents"])


def test_the_profiler_is_off(live):
    for action in ("start", "stop"):
        answer = live.post(f"/v1/gossamer/profiler/{action}")
        assert answer.status_code == 404
        assert "--profiles" in answer.json()["error"]["message"]


def test_the_schema(live):
    schema = live.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize"} <= set(schema["paths"])

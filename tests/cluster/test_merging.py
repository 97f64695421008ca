"""Several replicas' numbers as those of one server."""

from prometheus_client.parser import text_string_to_metric_families

from gossamer.cluster.merging import merged_metrics, merged_state
from gossamer.server.metrics import Metrics, StepTimes
from gossamer.server.snapshot import EngineState, HostState, Pages, Snapshot


def state(running, tokens, failures):
    pages = Pages(total=10, used=running, cached=1, bytes_each=64)
    seen = Snapshot(running, 1, pages, pages, 5 * running, 20, 3, 4, 5, tokens, 0, 0, 7)
    return HostState({"dense": EngineState(seen, 1.5, failures)}, running)


def test_states_are_added():
    merged = merged_state([state(2, 100, 0), state(3, 11, 4)])
    assert (merged.in_flight, merged.replicas) == (5, 2)
    engine = merged.engines["dense"]
    assert (engine.tokens_per_second, engine.failures) == (3.0, 0)
    assert (engine.seen.running, engine.seen.output_tokens, engine.seen.kv_bytes) == (5, 111, 25)
    assert engine.seen.fetched_bytes == 14
    assert engine.seen.stored == Pages(total=20, used=5, cached=2, bytes_each=64)


def test_metrics_keep_their_replica():
    texts = {}
    for name, steps in (("one", 2), ("two", 3)):
        metrics = Metrics()
        metrics.responded("POST", "/v1/completions", 200)
        for _ in range(steps):
            metrics.step("dense", StepTimes(1.0, firsts=[0.02]))
        texts[name] = metrics.text()
    families = {f.name: f for f in text_string_to_metric_families(merged_metrics(texts).decode())}
    counts = {
        sample.labels["replica"]: sample.value
        for sample in families["gossamer_time_to_first_token_seconds"].samples
        if sample.name.endswith("_count")
    }
    assert counts == {"one": 2, "two": 3}
    responses = families["gossamer_http_responses"]
    assert responses.type == "counter"
    assert [sample.value for sample in responses.samples] == [1, 1]

"""Numbers for Prometheus."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gossamer.engine import Usage
from gossamer.server.events import EngineRequest, Event
from gossamer.server.snapshot import Snapshot

Snapshots = Callable[[], Mapping[str, Snapshot]]
TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ITL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
GAUGES: dict[str, tuple[str, Callable[[Snapshot], float]]] = {
    "gossamer_sequences_running": ("Sequences in the batch", lambda s: s.running),
    "gossamer_sequences_waiting": ("Sequences in the queue", lambda s: s.waiting),
    "gossamer_kv_bytes": ("Bytes of pages in use", lambda s: s.kv_bytes),
    "gossamer_kv_dense_equivalent_bytes": (
        "Bytes that the same tokens would take in a plain cache",
        lambda s: s.kv_bytes_dense,
    ),
    "gossamer_kv_saved_bytes": ("What the cache does without", lambda s: s.saved_bytes),
}
COUNTERS: dict[str, tuple[str, Callable[[Snapshot], float]]] = {
    "gossamer_steps": ("Steps of the engine", lambda s: s.steps),
    "gossamer_prompt_tokens_computed": ("Prompt tokens computed", lambda s: s.prompt_tokens),
    "gossamer_prefix_cached_tokens": ("Tokens found by their prefix", lambda s: s.cached_tokens),
    "gossamer_output_tokens": ("Tokens sampled", lambda s: s.output_tokens),
    "gossamer_preemptions": ("Sequences that lost their pages", lambda s: s.preemptions),
}


class Metrics:
    """Of one server; the label `kv` names the engine by its cache."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "gossamer_requests", "Prompts by how they ended", ["kv", "outcome"], registry=registry
        )
        self._prefix_hits = Counter(
            "gossamer_prefix_hits", "Prompts that began like others", ["kv"], registry=registry
        )
        self._responses = Counter(
            "gossamer_http_responses",
            "HTTP responses",
            ["method", "route", "status"],
            registry=registry,
        )
        self._ttft = self._histogram("time_to_first_token", "Until the first token", TTFT_BUCKETS)
        self._itl = self._histogram("inter_token_latency", "From a token to the next", ITL_BUCKETS)
        self._latency = self._histogram(
            "request_duration", "From arrival to the last token", LATENCY_BUCKETS
        )

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        name = f"gossamer_{name}_seconds"
        return Histogram(name, description, ["kv"], buckets=buckets, registry=self.registry)

    def watch(self, snapshots: Snapshots) -> None:
        """From now on, report engines as well."""
        self.registry.register(_Engines(snapshots))

    def observe(self, request: EngineRequest, event: Event, now: float) -> None:
        """Latencies of what a step gave to a request."""
        if not event.tokens:
            return
        if request.first_token is None:
            request.first_token = now
            self._ttft.labels(request.kv).observe(now - request.arrival)
        if event.index in request.latest_token:
            self._itl.labels(request.kv).observe(now - request.latest_token[event.index])
        request.latest_token[event.index] = now
        if event.usage is not None:
            self._latency.labels(request.kv).observe(now - request.arrival)

    def finished(self, request: EngineRequest, outcome: str, usage: Usage | None = None) -> None:
        self._requests.labels(request.kv, outcome).inc()
        if usage is not None and usage.cached_tokens:
            self._prefix_hits.labels(request.kv).inc()

    def responded(self, method: str, route: str, status: int) -> None:
        self._responses.labels(method, route, str(status)).inc()

    def text(self) -> bytes:
        """In Prometheus's format."""
        return generate_latest(self.registry)


class _Engines(Collector):
    """Asks for snapshots when it is asked."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        found = self._snapshots()
        for name, (description, value) in GAUGES.items():
            gauge = GaugeMetricFamily(name, description, labels=["kv"])
            for kv, snapshot in found.items():
                gauge.add_metric([kv], value(snapshot))
            yield gauge
        for name, (description, value) in COUNTERS.items():
            counter = CounterMetricFamily(name, description, labels=["kv"])
            for kv, snapshot in found.items():
                counter.add_metric([kv], value(snapshot))
            yield counter
        yield self._pages(found)

    @staticmethod
    def _pages(found: Mapping[str, Snapshot]) -> Metric:
        gauge = GaugeMetricFamily(
            "gossamer_kv_pages",
            "Pages of the pools: stored as the cache's layout says, dense in windows",
            labels=["kv", "pool", "state"],
        )
        for kv, snapshot in found.items():
            for pool, pages in (("stored", snapshot.stored), ("dense", snapshot.dense)):
                gauge.add_metric([kv, pool, "used"], pages.used)
                gauge.add_metric([kv, pool, "cached"], pages.cached)
                gauge.add_metric([kv, pool, "free"], pages.free)
        return gauge

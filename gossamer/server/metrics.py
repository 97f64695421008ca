"""Numbers for Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter as Multiset
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

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
    "gossamer_kv_published_bytes": ("Pages published for others", lambda s: s.published_bytes),
    "gossamer_kv_fetched_bytes": ("Pages that others published", lambda s: s.fetched_bytes),
    "gossamer_preemptions": ("Sequences that lost their pages", lambda s: s.preemptions),
}


@dataclass
class StepTimes:
    """Of a step that ended `now`: times to first tokens, and when others had their token before.

    Most sequences had it in the step before, at one and the same time.
    """

    now: float
    firsts: list[float] = field(default_factory=list)
    befores: Multiset[float] = field(default_factory=Multiset)


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
        self._ttft = _Histogram("time_to_first_token", "Until the first token", TTFT_BUCKETS)
        self._itl = _Histogram("inter_token_latency", "From a token to the next", ITL_BUCKETS)
        self._latency = _Histogram(
            "request_duration", "From arrival to the last token", LATENCY_BUCKETS
        )
        for histogram in (self._ttft, self._itl, self._latency):
            registry.register(histogram)

    def watch(self, snapshots: Snapshots) -> None:
        """From now on, report engines as well."""
        self.registry.register(_Engines(snapshots))

    def step(self, kv: str, times: StepTimes) -> None:
        """Latencies of the tokens of a step."""
        for seconds in times.firsts:
            self._ttft.observe(kv, seconds)
        for before, count in times.befores.items():
            self._itl.observe(kv, times.now - before, count)

    def ended(self, kv: str, outcome: str) -> None:
        """A prompt, one way or another."""
        self._requests.labels(kv, outcome).inc()

    def finished(self, kv: str, seconds: float, cached_tokens: int) -> None:
        """A prompt whose outputs are complete."""
        self._latency.observe(kv, seconds)
        if cached_tokens:
            self._prefix_hits.labels(kv).inc()

    def responded(self, method: str, route: str, status: int) -> None:
        self._responses.labels(method, route, str(status)).inc()

    def text(self) -> bytes:
        """In Prometheus's format."""
        return generate_latest(self.registry)


class _Histogram(Collector):
    """prometheus_client's has no way to count several equal values at once."""

    def __init__(self, name: str, description: str, bounds: Sequence[float]) -> None:
        self._name, self._description = f"gossamer_{name}_seconds", description
        self._bounds = bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self._lock = threading.Lock()

    def observe(self, kv: str, seconds: float, times: int = 1) -> None:
        with self._lock:
            counts = self._counts.setdefault(kv, [0] * (len(self._bounds) + 1))
            counts[bisect_left(self._bounds, seconds)] += times
            self._sums[kv] = self._sums.get(kv, 0.0) + times * seconds

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._description, labels=["kv"])
        with self._lock:
            for kv, counts in self._counts.items():
                names = [*map(str, map(float, self._bounds)), "+Inf"]
                buckets = list(zip(names, map(float, accumulate(counts)), strict=True))
                family.add_metric([kv], buckets, self._sums[kv])
        return [family]


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

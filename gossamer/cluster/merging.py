"""The numbers of several replicas as one server's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gossamer.server.snapshot import EngineState, HostState, Pages, Snapshot

POOLS = ("stored", "dense")


def merged_state(states: Sequence[HostState]) -> HostState:
    """Sums; engines fail only where all replicas do, as a failing one is replaced."""
    engines = {
        name: _merged([state.engines[name] for state in states]) for name in states[0].engines
    }
    return HostState(engines, sum(state.in_flight for state in states), len(states))


def _merged(states: Sequence[EngineState]) -> EngineState:
    seen = [state.seen for state in states]
    merged: dict[str, Any] = {
        each.name: sum(getattr(snapshot, each.name) for snapshot in seen)
        for each in fields(Snapshot)
        if each.name not in POOLS
    }
    merged |= {name: _pages([getattr(snapshot, name) for snapshot in seen]) for name in POOLS}
    return EngineState(
        Snapshot(**merged),
        sum(state.tokens_per_second for state in states),
        min(state.failures for state in states),
    )


def _pages(pools: Sequence[Pages]) -> Pages:
    total, used, cached = (
        sum(getattr(p, name) for p in pools) for name in ("total", "used", "cached")
    )
    return Pages(total, used, cached, pools[0].bytes_each)


def merged_metrics(texts: Mapping[str, bytes]) -> bytes:
    """Prometheus's format of all replicas, each sample with the name of its replica as a label."""
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            new = Metric(family.name, family.documentation, family.type)
            into = families.setdefault(family.name, new)
            for sample in family.samples:
                if not sample.name.endswith("_created"):  # of one process, not of the server
                    labels = {**sample.labels, "replica": replica}
                    into.samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families

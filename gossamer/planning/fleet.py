"""How many GPUs a rate of requests needs, cache by cache."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from gossamer.kv import Calibration, KVConfig, KVShape
from gossamer.kv.auto import Preset
from gossamer.kv.speed import cuda_limits
from gossamer.models import ModelConfig
from gossamer.planning.gpu import GPU
from gossamer.planning.memory import Limits
from gossamer.planning.step import StepModel
from gossamer.planning.traffic import Replica, State, Traffic
from gossamer.workloads.bounds import Bounds

KIVI = "k=dense:int4@channel,v=dense:int4@group"
CACHES = ("dense", "dense:int8", KIVI, "coded:23.5%", "coded:20.5%")
RANKS = (1, 2, 4, 8)  # that are tried where nobody says how many: a node
UTILISATION = 0.8  # of the highest rate: what is left is for bursts


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What has to be served, and how. rate: requests per second of all replicas.

    ranks: GPUs of a replica, None for as many as make the fewest GPUs in all. utilisation: share of
    a replica's highest rate that it shall have. Raises ValueError for numbers out of range.
    """

    gpu: GPU
    model: ModelConfig
    dtype: torch.dtype
    traffic: Traffic
    rate: float
    bounds: Bounds = field(default_factory=Bounds)
    limits: Limits = field(default_factory=Limits)
    ranks: int | None = None
    utilisation: float = UTILISATION

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate is {self.rate}; must be requests per second above 0")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation is {self.utilisation}; must be above 0 and at most 1")
        if self.ranks is not None and (type(self.ranks) is not int or self.ranks < 1):
            raise ValueError(f"tensor_parallel_size is {self.ranks!r}; must be at least 1")
        if self.traffic.longest > self.model.max_positions:
            raise ValueError(
                f"context is {self.traffic.longest:,} tokens; must be at most "
                f"{self.model.max_positions:,}, the model's"
            )

    def config_of(self, spec: str) -> KVConfig:
        """With all bits known: percentages are those of channels that are all alike.

        Raises ValueError for presets, and for caches without a tuned kernel.
        """
        if Preset.parse(spec) is not None:
            raise ValueError(f"kv is {spec!r}, which depends on a calibration; must be a KV spec")
        shape = self.model.kv_shape
        kv = KVConfig.of(spec, self.dtype)
        if not kv.resolved:
            kv = kv.resolve(_blank(shape.head_dim))
        reason = cuda_limits(kv, shape, self.dtype)
        if reason is not None:
            raise ValueError(f"kv is {spec!r}, which has no tuned kernel: {reason}")
        return kv

    def replica(self, kv: KVConfig, ranks: int) -> Replica:
        model = StepModel(self.gpu, self.model, kv, self.dtype, ranks)
        return Replica(model, self.traffic, self.limits, self.bounds)


@cache
def _blank(head_dim: int) -> Calibration:
    """Of channels that are all alike, which bits are picked by: one head says what all would."""
    return Calibration.blank(KVShape(1, 1, 1, head_dim), "")


@dataclass(frozen=True)
class Fleet:
    """Replicas of one kind that serve the demand. most: requests/s that one could serve."""

    kv: str
    replica: Replica
    replicas: int
    most: float
    state: State

    @property
    def ranks(self) -> int:
        return self.replica.model.ranks

    @property
    def gpus(self) -> int:
        return self.replicas * self.ranks

    @property
    def facts(self) -> dict[str, Any]:
        """For JSON; times in milliseconds."""
        state, replica = self.state, self.replica
        return {
            "kv": self.kv,
            "gpus": self.gpus,
            "replicas": self.replicas,
            "tensor_parallel_size": self.ranks,
            "measured": replica.model.measured,
            "kv_bytes_per_sequence": replica.sequence_bytes,
            "sequences_that_fit": replica.fits,
            "limit": replica.limit,
            "most_requests_per_second": self.most,
            "requests_per_second": state.rate,
            "utilisation": state.rate / self.most,
            "batch": state.batch,
            "kv_used": state.held / replica.fits,
            "tpot_ms": 1e3 * state.tpot,
            "ttft_ms": 1e3 * state.ttft,
            "shares_of_time": state.shares,
        }


@dataclass(frozen=True)
class Impossible:
    """A cache with which the demand cannot be served, and why."""

    kv: str
    reason: str


def fleet(demand: Demand, spec: str) -> Fleet:
    """The one of fewest GPUs. Raises ValueError where there is none."""
    kv = demand.config_of(spec)
    tried = RANKS if demand.ranks is None else (demand.ranks,)
    found, reasons = list[Fleet](), list[str]()
    for ranks in tried:
        try:
            found.append(_fleet(demand, spec, demand.replica(kv, ranks)))
        except ValueError as error:
            reasons.append(str(error))
    if found:
        return min(found, key=lambda f: (f.gpus, f.ranks))
    raise ValueError(reasons[-1] + _instead(demand, kv))


def _fleet(demand: Demand, spec: str, replica: Replica) -> Fleet:
    most = replica.most.rate
    count = replicas_needed(demand.rate, demand.utilisation * most)
    return Fleet(spec, replica, count, most, replica.state(demand.rate / count))


def replicas_needed(rate: float, each: float) -> int:
    """For a rate of which one replica takes `each`."""
    return math.ceil(rate / each - 1e-9)


def _instead(demand: Demand, kv: KVConfig) -> str:
    """Which numbers of ranks would do, where one was asked for that does not."""
    if demand.ranks is None:
        return ""
    others = list[str]()
    for ranks in RANKS:
        try:
            _ = demand.replica(kv, ranks).most
            others.append(str(ranks))
        except ValueError:
            continue
    return f"; tensor_parallel_size can be {' or '.join(others)}" if others else ""


def fleets(demand: Demand, specs: Sequence[str] = CACHES) -> list[Fleet | Impossible]:
    """One for each cache. Raises ValueError where none is possible."""
    found = [_or_why_not(demand, spec) for spec in specs]
    failed = [f for f in found if isinstance(f, Impossible)]
    if failed and len(failed) == len(found):
        raise ValueError(f"{failed[0].kv}: {failed[0].reason}")
    return found


def _or_why_not(demand: Demand, spec: str) -> Fleet | Impossible:
    try:
        return fleet(demand, spec)
    except ValueError as error:
        return Impossible(spec, str(error))

"""Throughput and latency of engines, one record for each cache and point."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.bench import Record
from gossamer.engine import LLM, EngineConfig
from gossamer.engine.build import sized_cache
from gossamer.engine.config import parse_bytes
from gossamer.kv import KVConfig, KVShape
from gossamer.models import open_model
from gossamer.workloads.loading import loaded
from gossamer.workloads.measuring import equal_requests, measure
from gossamer.workloads.measuring import warm_up_requests as warm_up
from gossamer.workloads.records import decode_record, first_token_record, throughput_record
from gossamer.workloads.requests import RequestMix
from gossamer.workloads.sizes import memory_for, sequences_that_fit
from gossamer.workloads.synthetic import fill as fill_engine

REQUESTS = 256
FILL_BUDGET = 1 << 24  # tokens; prompts that cost nothing all start in one step


@dataclass(frozen=True)
class BenchConfig:
    """A model, the caches to compare, and settings of their engines."""

    model: str
    caches: list[str]
    dtype: str = "auto"
    device: str = "auto"
    kv_memory: str | int | None = None
    calibration: Path | None = None
    random_weights: bool = False
    eager: bool = False
    weights: str = "auto"

    def resolved(self) -> tuple[torch.dtype, str, KVShape]:
        """The dtype and device that the engine will choose, and the model's shape."""
        config = EngineConfig(model=self.model, dtype=self.dtype, device=self.device)
        device = config.resolved_device()
        model = open_model(self.model, self.random_weights).config
        return config.resolved_dtype(device, model.dtype), str(device), model.kv_shape

    def resolved_device(self) -> str:
        return str(EngineConfig(model=self.model, device=self.device).resolved_device())

    def sized(self, kv: str) -> KVConfig:
        """The cache that a spec names, with all bits known."""
        source = open_model(self.model, self.random_weights)
        config = EngineConfig(model=source, kv=kv, calibration=self.calibration)
        return sized_cache(config, source, self.resolved()[0])

    def load(self, kv: str, **more: Any) -> AbstractContextManager[LLM]:
        """An engine, by default without prefix cache: random prompts share nothing."""
        options: dict[str, Any] = {
            "kv": kv,
            "dtype": self.dtype,
            "device": self.device,
            "kv_memory": self.kv_memory,
            "calibration": self.calibration,
            "random_weights": self.random_weights,
            "enforce_eager": self.eager,
            "weights": self.weights,
            "prefix_caching": False,
            **more,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return loaded(self.model, **given)


@dataclass(frozen=True)
class Workload:
    """Requests of `throughput`; lengths are drawn from ranges (least, most), see RequestMix.

    context: length of all prompts, instead of `inputs`. requests: how many; by default 256, or with
    a context, as many as fit the KV memory. fill: prompts are not computed, see `synthetic`.
    name: of the workload that the numbers come from.
    """

    requests: int | None = None
    inputs: tuple[int, int] = (100, 1024)
    outputs: tuple[int, int] = (100, 1024)
    context: int | None = None
    fill: bool = False
    temperature: float = 0.6
    seed: int = 0
    prefix: int = 0
    prefixes: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        self.mix(1 if self.requests is None else self.requests)

    def mix(self, count: int) -> RequestMix:
        """So many of these requests."""
        return RequestMix(
            requests=count,
            inputs=self.inputs if self.context is None else (self.context, self.context),
            outputs=self.outputs,
            prefix=self.prefix,
            prefixes=self.prefixes,
        )

    def __str__(self) -> str:
        outputs = f"output {_range(self.outputs)}"
        if self.context is not None:
            return outputs + (" fill" if self.fill else "")
        lengths = f"input {_range(self.inputs)} {outputs}"
        if self.prefix:
            lengths = f"prefix {self.prefix} x {self.prefixes} {lengths}"
        return lengths if self.name is None else f"{self.name}: {lengths} seed {self.seed}"


def _range(bounds: tuple[int, int]) -> str:
    return ",".join(map(str, dict.fromkeys(bounds)))


def throughput(config: BenchConfig, workload: Workload) -> list[Record]:
    """All requests at once with each cache. Raises ValueError for what cannot run."""
    longest = workload.mix(1).longest
    dtype, _, shape = config.resolved()
    records = []
    for kv in config.caches:
        # Random prompts share nothing but their prefixes.
        more: dict[str, Any] = {"prefix_caching": workload.prefix > 0}
        count = workload.requests or REQUESTS
        if workload.context is not None and workload.requests is None:
            if config.kv_memory is None:
                raise ValueError("kv_memory is missing; needed to find how many requests fit")
            memory = parse_bytes("kv_memory", config.kv_memory)
            count = sequences_that_fit(config.sized(kv), shape, dtype, longest, memory)
            more |= {"max_num_seqs": count + 1}
        more |= {"max_num_batched_tokens": FILL_BUDGET} if workload.fill else {}
        more |= {"max_model_len": longest}
        records.append(_throughput(config, kv, workload.mix(count), workload, more))
    return records


def _throughput(
    config: BenchConfig, kv: str, mix: RequestMix, workload: Workload, options: dict[str, Any]
) -> Record:
    """With an engine of its own, whose memory is gone when the next one is loaded."""
    with config.load(kv, **options) as llm:
        return _loaded_throughput(llm, kv, mix, workload)


def _loaded_throughput(llm: LLM, kv: str, mix: RequestMix, workload: Workload) -> Record:
    vocab = llm.engine.built.source.config.vocab_size
    requests = mix.draw(vocab, workload.seed)
    if workload.fill:
        fill_engine(llm)
    # A prefix cache must not know the prompts.
    warm_up(llm, mix.draw(vocab, workload.seed, "warm-up") if workload.prefix else requests)
    found = measure(llm, requests, workload.temperature)
    context = max(len(request.ids) for request in requests)
    return throughput_record(
        llm.engine, kv, found, str(workload), context=context, filled=workload.fill
    )


def latency(
    config: BenchConfig,
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    output: int,
    *,
    fill: bool = False,
) -> list[Record]:
    """Every batch at every context with each cache. Raises ValueError for what cannot run."""
    dtype, _, shape = config.resolved()
    longest, most = max(contexts) + output, max(batches)
    records = []
    for kv in config.caches:
        memory = config.kv_memory
        if memory is None:
            memory = memory_for(config.sized(kv), shape, dtype, longest, most)
        more: dict[str, Any] = {"max_num_batched_tokens": FILL_BUDGET} if fill else {}
        more |= {"max_model_len": longest, "max_num_seqs": most + 1}
        more |= {"kv_memory": memory}
        records += _latencies(config, kv, batches, contexts, output, fill, more)
    return records


def _latencies(
    config: BenchConfig,
    kv: str,
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    output: int,
    fill: bool,
    options: dict[str, Any],
) -> list[Record]:
    """With an engine of its own, whose memory is gone when the next one is loaded."""
    records = []
    with config.load(kv, **options) as llm:
        if fill:
            fill_engine(llm)
        for batch in batches:
            for context in contexts:
                records += _latency(llm, kv, batch, context, output, fill)
    return records


def _latency(llm: LLM, kv: str, batch: int, context: int, output: int, fill: bool) -> list[Record]:
    """Of one batch: decode steps, and unless prompts are not computed, first tokens."""
    engine = llm.engine
    requests = equal_requests(engine.built.source.config.vocab_size, batch, context, output)
    warm_up(llm, requests)
    found = measure(llm, requests)
    records = [] if fill else [first_token_record(engine, kv, found, context)]
    return [*records, decode_record(engine, kv, found, context, filled=fill)]

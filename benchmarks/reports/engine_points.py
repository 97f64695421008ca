"""Every committed time of the engine on a GPU, and what the planner says of it."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.end_to_end.loads import LOADS, LONG, OUTPUT, SHORT, drawn, equal_sequences
from gossamer.bench import Record, read_records
from gossamer.bench.suite import RESULTS
from gossamer.kv import KVConfig
from gossamer.models import ModelConfig, open_model
from gossamer.planning.gpu import GPU
from gossamer.planning.memory import Limits
from gossamer.planning.simulation import Arrival, simulate
from gossamer.planning.step import StepModel, Work

MODELS = Path(__file__).parents[1] / "models"
STEP, PROMPTS, LOAD = "decode step", "prompts", "load"
LOAD_LIMITS = Limits(kv_memory=90_000_000_000, prefix_caching=False)


@dataclass(frozen=True)
class Point:
    """A time in seconds. what: STEP of so many sequences after `context` tokens, PROMPTS of
    `context` tokens at once, or a LOAD by name. output: tokens while steps were timed."""

    source: str
    revision: str
    model: str
    kv: str
    what: str
    seconds: float
    sequences: int
    context: int = 0
    output: int = 0
    load: str = ""

    @property
    def place(self) -> str:
        return self.load or f"{self.sequences} x {self.context:,}"

    def model_on(self, gpu: GPU) -> StepModel:
        dtype = torch.bfloat16
        return StepModel(gpu, model_of(self.model), KVConfig.of(self.kv, dtype), dtype)

    def predicted(self, gpu: GPU) -> float:
        """Seconds."""
        model = self.model_on(gpu)
        if self.what == STEP:
            return model.seconds(self.work)
        return simulate(model, self.arrivals, LOAD_LIMITS).seconds

    @property
    def work(self) -> Work:
        """Of a step in the middle of those that were timed."""
        return Work(self.sequences, self.sequences * (self.context + self.output / 2))

    @property
    def arrivals(self) -> list[Arrival]:
        if self.what == PROMPTS:
            return [Arrival(self.context, 1)] * self.sequences
        return [Arrival(*lengths) for lengths in _lengths(self.load)]


@cache
def model_of(name: str) -> ModelConfig:
    return open_model(MODELS / name, random_weights=True).config


@cache
def _lengths(load: str) -> tuple[tuple[int, int], ...]:
    random.seed(1)
    prompts, outputs = drawn(LOADS[load])
    return tuple((len(p), o) for p, o in zip(prompts, outputs, strict=True))


def points(folder: str = "nvidia-h200") -> list[Point]:
    """All of them: loads, the second run of each, then the older engine_*.jsonl."""
    return [*loads(), *_records(RESULTS / folder)]


def loads(path: Path = OUTPUT) -> Iterator[Point]:
    for line in map(json.loads, path.read_text().splitlines()):
        if line.get("run") == "second":
            yield from _of_line(line)


def _of_line(line: dict[str, Any]) -> Iterator[Point]:
    about = {"source": OUTPUT.name, **{n: line[n] for n in ("revision", "model", "kv")}}
    work = line["work"]
    if work in LOADS:
        count = LOADS[work].requests
        yield Point(**about, what=LOAD, seconds=line["seconds"], sequences=count, load=work)
        return
    sequences, context = equal_sequences(work) or (0, 0)
    equal: dict[str, Any] = {"sequences": sequences, "context": context}
    seconds = sequences * context / line["prefill_tps"]
    yield Point(**about, what=PROMPTS, seconds=seconds, **equal)
    step = line["step_ms"] / 1e3
    yield Point(**about, what=STEP, seconds=step, output=SHORT + LONG, **equal)


def _records(folder: Path) -> Iterator[Point]:
    for path in sorted(folder.glob("engine_*.jsonl")):
        for record in read_records(path):
            if record.backend == "gossamer":
                yield _of_record(path.name, record)


def _of_record(source: str, record: Record) -> Point:
    model, kv, *_ = record.variant.split(", ")
    sequences, context = record.shape
    what, seconds, output = STEP, record.median_ms / 1e3, 64
    if record.op == "engine_prefill":
        what, output = PROMPTS, 0
    elif record.op == "engine_throughput":  # of whole runs, which are decode steps alone
        seconds = sequences / record.facts["full_batch_tokens_per_second"]
    return Point(
        source=source,
        revision=record.revision[:7],
        model=model.removesuffix(" with random weights"),
        kv=kv,
        what=what,
        seconds=seconds,
        sequences=sequences,
        context=context,
        output=output,
    )

"""Lines computed by engines over Ray Data. Only this file needs ray: pip install 'gossamer[ray]'.

A part of the file -> its lines, on the driver's node -> results, in actors -> the driver's file.
Ray Data streams blocks through these with bounded memory, and starts dead actors again.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gossamer.batch.answers import EngineFailedError, answering
from gossamer.batch.job import Job, Setup
from gossamer.batch.lines import Chunk, Line, Survey
from gossamer.batch.results import Result, Results
from gossamer.batch.run import Compute
from gossamer.engine import EngineConfig
from gossamer.evaluation.progress import Bar
from gossamer.workloads.loading import loaded

CALLS = 4  # of an engine at a time: while one ends, it has the lines of others
BLOCK = 128 << 10  # bytes of lines or results that travel together
READER_CPUS = 0.5


def computing(replicas: int) -> Compute:
    """With so many engines, in the cluster of RAY_ADDRESS or else on this machine."""
    return partial(_compute, replicas=replicas)


def _compute(setup: Setup, survey: Survey, results: Results, bar: Bar, replicas: int) -> None:
    """See `run`. Raises ValueError for too small a cluster and EngineFailedError."""
    with _connected(replicas, _gpus(setup)):
        try:
            for batch in _batches(setup, survey, results, replicas):
                for row in batch.to_pylist():
                    if results.add(row["number"], row["line"], ok=row["ok"]):
                        bar.advance()
                results.sync()
        except RayError as error:
            raise EngineFailedError(_reason(error)) from None


def _batches(
    setup: Setup, survey: Survey, results: Results, replicas: int
) -> Iterator[pa.Table]:
    """Results in any order, as they come."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.target_max_block_size = False, BLOCK
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    parts = [_part(chunk, survey, results.done) for chunk in survey.chunks]
    lines = ray.data.from_items(parts, override_num_blocks=len(parts)).flat_map(
        partial(_read, path=survey.path, limit=survey.limit),
        num_cpus=READER_CPUS,
        scheduling_strategy=here,
    )
    found = lines.map_batches(
        _Replica,
        fn_constructor_args=(setup, results.job),
        batch_size=max(1, setup.in_flight // CALLS),
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=replicas, max_concurrent_calls_per_actor=CALLS, enable_true_multi_threading=True
        ),
        num_cpus=1,
        num_gpus=_gpus(setup),
    )
    return iter(found.iter_batches(batch_size=None, batch_format="pyarrow"))


def _part(chunk: Chunk, survey: Survey, done: bytearray) -> dict[str, Any]:
    """A chunk with what is known of its lines."""
    lines = slice(chunk.begin, chunk.end)
    return {**asdict(chunk), "done": bytes(done[lines]), "repeats": bytes(survey.repeats[lines])}


def _read(part: dict[str, Any], path: Path, limit: int) -> Iterator[dict[str, Any]]:
    chunk = Chunk(part["offset"], part["begin"], part["end"])
    for number, content in chunk.read(path, limit):
        at = number - chunk.begin
        if not part["done"][at]:
            yield {"number": number, "content": content, "repeats": bool(part["repeats"][at])}


class _Replica:
    """An engine with the server's application, in an actor; called in several threads."""

    def __init__(self, setup: Setup, job: Job) -> None:
        self._setup, self._job = setup, job
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        llm = loaded(setup.model, kv=setup.kv, **setup.options).__enter__()
        self._context = answering({setup.kv: llm}, setup.settings())
        self._answers = self._wait_for(self._context.__aenter__())

    def __call__(self, table: pa.Table) -> pa.Table:
        lines = (Line(**row) for row in table.to_pylist())
        found: list[Result] = []
        self._wait_for(self._answers.to(lines, table.num_rows, found.append))
        return pa.table(
            {
                "number": [result.number for result in found],
                "line": [result.line(self._job) for result in found],
                "ok": [result.ok for result in found],
            }
        )

    def _wait_for(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

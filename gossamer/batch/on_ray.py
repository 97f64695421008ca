"""Lines computed by engines over Ray Data. Nothing else needs ray: pip install 'gossamer[ray]'.

Chunks of the input -> lines, read on the node of this process -> results, made in actors -> this
process, which writes them. Ray Data streams blocks through this, so that few are in memory at a
time, and starts actors that die again.
"""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from gossamer.batch.answers import EngineFailedError, answering
from gossamer.batch.job import Job, Setup
from gossamer.batch.lines import Chunk, Line, Survey
from gossamer.batch.results import Result, Results
from gossamer.batch.run import Compute
from gossamer.engine import EngineConfig
from gossamer.evaluation.progress import Bar
from gossamer.server.engine_process import EXPECTED
from gossamer.workloads.loading import loaded

ADDRESS = "RAY_ADDRESS"  # Ray's own variable
READER_CPUS = 0.5
CALLS = 4  # of an engine at a time: when one of them ends, it has the lines of the others
BLOCKS = (4 << 10, 128 << 10)  # bytes of lines or results that travel together
# A row is a result, or the reason why there are no more; refused: an engine could not be loaded.
RESULTS = pa.schema(
    {
        "number": pa.int64(),
        "line": pa.string(),
        "ok": pa.bool_(),
        "error": pa.string(),
        "refused": pa.bool_(),
    }
)


def computing(replicas: int) -> Compute:
    """By so many engines, in the cluster of RAY_ADDRESS, or else on this machine."""
    return partial(_compute, replicas=replicas)


def _compute(setup: Setup, survey: Survey, results: Results, bar: Bar, replicas: int) -> None:
    """See `run`. Raises ValueError for a cluster that is too small and for what an engine cannot be
    loaded with, and EngineFailedError."""
    with _connected(replicas, _gpus(setup)):
        try:
            for table in _tables(setup, survey, results, replicas):
                for row in table.to_pylist():
                    if row["error"] is not None:
                        raise (ValueError if row["refused"] else EngineFailedError)(row["error"])
                    if results.add(row["number"], row["line"], ok=row["ok"]):
                        bar.advance()
                results.sync()
        except RayError as error:
            raise EngineFailedError(str(error).strip().splitlines()[-1]) from None


def _gpus(setup: Setup) -> int:
    """Of each engine."""
    config = EngineConfig(model=setup.model, **setup.options)
    return config.tensor_parallel_size if config.device_type == "cuda" else 0


@contextmanager
def _connected(replicas: int, gpus: int) -> Iterator[None]:
    """Ray, with enough for so many engines of so many GPUs each."""
    if os.environ.get(ADDRESS):
        ray.init(logging_level=logging.ERROR)
    else:  # a CPU is a number to Ray; engines share the cores, whatever it is
        ray.init(
            "local", num_cpus=replicas + 1, include_dashboard=False, logging_level=logging.ERROR
        )
    try:
        present = ray.cluster_resources()
        for kind, needed in {"CPU": replicas + READER_CPUS, "GPU": replicas * gpus}.items():
            if present.get(kind, 0) < needed:
                raise ValueError(
                    f"--replicas is {replicas}, for which Ray must have {needed:g} {kind}s; "
                    f"it has {present.get(kind, 0):g}"
                )
        yield
    finally:
        ray.shutdown()


def _tables(setup: Setup, survey: Survey, results: Results, replicas: int) -> Iterator[Any]:
    """Rows of RESULTS as they come, in any order."""
    left = survey.count - results.count
    rows = min(max(1, setup.in_flight // CALLS), -(-left // (replicas * CALLS)))
    mean = survey.path.stat().st_size // survey.count
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = max(BLOCKS[0], min(rows * mean, BLOCKS[1]))
    parts = [_part(chunk, survey, results.done) for chunk in survey.chunks]
    lines = ray.data.from_items(parts, override_num_blocks=len(parts)).flat_map(
        partial(_read, path=survey.path.absolute(), limit=survey.limit),
        num_cpus=READER_CPUS,
        label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
    )
    pool = ray.data.ActorPoolStrategy(
        size=replicas, max_concurrent_calls_per_actor=CALLS, enable_true_multi_threading=True
    )
    found = lines.map_batches(
        _Replica,
        fn_constructor_args=(setup, results.job),
        batch_size=rows,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=1,
        num_gpus=_gpus(setup),
    )
    return iter(found.iter_batches(batch_size=None, batch_format="pyarrow"))


def _part(chunk: Chunk, survey: Survey, done: bytearray) -> dict[str, Any]:
    """A chunk, and what is known of its lines."""
    lines = slice(chunk.begin, chunk.end)
    return {**asdict(chunk), "done": bytes(done[lines]), "repeats": bytes(survey.repeats[lines])}


def _read(part: dict[str, Any], path: Path, limit: int) -> Iterator[dict[str, Any]]:
    """Fields of Line."""
    chunk = Chunk(part["offset"], part["begin"], part["end"])
    for number, content in chunk.read(path, limit):
        at = number - chunk.begin
        if not part["done"][at]:
            yield {"number": number, "content": content, "repeats": bool(part["repeats"][at])}


class _Replica:
    """An engine with the server's application, in an actor; several threads call it.

    Errors are rows: raised, they would come with the traces of three processes.
    """

    def __init__(self, setup: Setup, job: Job) -> None:
        self._job, self._stack = job, ExitStack()
        self._refused: str | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        try:
            llm = self._stack.enter_context(loaded(setup.model, kv=setup.kv, **setup.options))
        except EXPECTED as error:
            self._refused = str(error)
            return
        context = answering({setup.kv: llm}, setup.settings())
        self._answers = self._wait_for(context.__aenter__())
        self._stack.callback(lambda: self._wait_for(context.__aexit__(None, None, None)))

    def __del__(self) -> None:
        """Ray calls it when an actor ends, or Python at its end, when no thread would answer."""
        if not sys.is_finalizing():
            self._stack.close()

    def __call__(self, table: Any) -> Any:
        found: list[Result] = []
        error = self._refused
        if error is None:
            lines = (Line(**row) for row in table.to_pylist())
            try:
                self._wait_for(self._answers.to(lines, table.num_rows, found.append))
            except EngineFailedError as failed:
                error = str(failed)
        rows: list[dict[str, Any]] = [
            {"number": r.number, "line": r.line(self._job), "ok": r.ok} for r in found
        ]
        if error is not None:
            rows.append({"error": error, "refused": self._refused is not None})
        return pa.Table.from_pylist(rows, RESULTS)

    def _wait_for(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

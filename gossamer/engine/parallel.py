"""Tensor parallelism: rank 0 in the caller's process, the others where a launcher starts them.

The caller has rank 0's part of the model and everything that is not the model. Steps go to the
workers over pipes; the ranks then meet in the decoder's all_reduce.
"""

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _abort_process_group

from gossamer.engine import launch_ray, launch_spawn, launch_torchrun, worker
from gossamer.engine.adapters import SetAdapter
from gossamer.engine.build import Built, build, cache_config
from gossamer.engine.config import EngineConfig
from gossamer.engine.step import StepInput
from gossamer.engine.worker import Start
from gossamer.engine.workers import REFUSALS, Launch, WorkerDiedError, Workers
from gossamer.models import Shard

__all__ = ["ParallelExecutor", "WorkerDiedError"]

NOTICE = 3.0  # seconds until a death that broke a collective is known here
LAUNCHERS: Mapping[str, Callable[[EngineConfig], Launch]] = {
    "spawn": launch_spawn.launch,
    "torchrun": launch_torchrun.launch,
    "ray": launch_ray.launch,
}


class ParallelExecutor:
    """All ranks. Raises what `build` raises, on whichever rank, and leaves no process behind.

    After a step that failed, ranks may be at different places in it: every later step raises
    WorkerDiedError. Uses the default group of torch.distributed, so there can be one at a time.
    """

    def __init__(self, config: EngineConfig) -> None:
        shard = Shard(0, config.tensor_parallel_size)
        if dist.is_initialized():
            raise RuntimeError(
                f"tensor_parallel_size is {shard.size}, and this process is in a group of "
                "torch.distributed already; close the other LLM or destroy the group first"
            )
        config = _for_ranks(config, shard)
        launch = LAUNCHERS[config.resolved_launcher](config)
        group = _Group("nccl" if config.device == "cuda" else "gloo")
        self._workers = Workers(launch.members, group.interrupt)
        ends = (self._workers, group, launch, torch.get_num_threads())
        self._end = weakref.finalize(self, _end, os.getpid(), *ends)
        self._broken: str | None = None
        try:
            self.built = self._build(config, shard, group, launch)
        except BaseException as error:
            self._fail(error)
            raise

    def _build(self, config: EngineConfig, shard: Shard, group: "_Group", launch: Launch) -> Built:
        """On all ranks."""
        store = worker.open_store(launch.host)
        reached = (launch.host, store.port)
        self._workers.start(
            {
                rank: Start(config, Shard(rank, shard.size), group.backend, reached, launch.threads)
                for rank in launch.members
            }
        )
        self._workers.wait_for(worker.JOINED)
        group.join(store, shard)
        if launch.threads is not None:
            torch.set_num_threads(launch.threads)
        built = build(config, shard, launch.gpu)
        self._workers.wait_for(worker.BUILT)
        return built

    def run(self, step: StepInput) -> Tensor:
        """Raises WorkerDiedError, naming the rank, when one is gone."""
        self._check()
        try:
            self._workers.send(step)
            logits = self.built.runner.run(step)
            if self.built.device.type == "cuda":
                # An aborted collective leaves nonsense and raises nothing: wait for it here.
                torch.cuda.current_stream(self.built.device).synchronize()
        except BaseException as error:
            self._fail(error)
            raise
        self._check()
        assert logits is not None, "rank 0 has logits"
        return logits

    def keep(self, rows: list[int], tokens: Tensor) -> None:
        """Never called: other ranks would not know, so EngineConfig refuses to ask for it."""
        raise AssertionError("asynchronous scheduling with several ranks")

    def set_adapter(self, change: SetAdapter) -> None:
        """Raises WorkerDiedError, naming the rank, when one is gone."""
        self._check()
        try:
            self._workers.send(change)
            self.built.runner.set_adapter(change)
        except BaseException as error:
            self._fail(error)
            raise

    def close(self) -> None:
        """End the workers and the group; can be called twice."""
        self._end()

    def _check(self) -> None:
        error = self._workers.error()
        if error is not None:
            self.close()
            raise error
        if self._broken is not None:
            raise WorkerDiedError(f"the workers were ended, as rank 0 failed: {self._broken}")
        if not self._end.alive:
            raise RuntimeError("the engine is closed")

    def _fail(self, error: BaseException) -> None:
        """End everything; raises the death of a worker if that is what `error` comes from."""
        death = None
        if isinstance(error, Exception) and not isinstance(error, WorkerDiedError):
            refused = isinstance(error, tuple(REFUSALS.values()))
            death = self._workers.error(timeout=0 if refused else NOTICE)
        self._broken = f"{type(error).__name__}: {error}"
        self._workers.close(patience=0)  # they may wait for rank 0 in a collective
        self.close()
        if death is not None:
            raise death from error


def _for_ranks(config: EngineConfig, shard: Shard) -> EngineConfig:
    """The config that all ranks get: of the cache, all bits are known.

    What needs no worker to be refused is refused here, before any is started.
    """
    source, device = config.source(), config.resolved_device()
    shard.check(source.config)
    dtype = config.resolved_dtype(device, source.config.dtype)
    kv, _ = cache_config(config, source, dtype)
    return replace(config, kv=kv, device=device.type)


def _end(pid: int, workers: Workers, group: "_Group", launch: Launch, threads: int) -> None:
    if os.getpid() == pid:  # a fork of the caller has no say in this
        workers.close()
        group.end()
        launch.end()
        torch.set_num_threads(threads)


class _Group:
    """The default group of torch.distributed, as long as it is ours."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._group: Any = None
        self._lock = threading.RLock()

    def join(self, store: Any, shard: Shard) -> None:
        worker.join_group(store, shard, self.backend)
        self._group = dist.group.WORLD

    def interrupt(self) -> None:
        """Make a collective that waits for a dead rank return: with nonsense, not an error.

        Gloo has no such call, and needs none: it raises when the other side's connection closes.
        """
        if self.backend == "nccl":
            self.end()

    def end(self) -> None:
        with self._lock:
            group, self._group = self._group, None
            if group is None or dist.group.WORLD is not group:
                return
            if self.backend == "nccl":  # to destroy it would wait for ranks that may be gone
                _abort_process_group()
            else:
                dist.destroy_process_group()

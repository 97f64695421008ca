"""A rank above 0 of tensor parallelism: a process that runs what rank 0 sends it."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gossamer.engine.adapters import SetAdapter
from gossamer.engine.build import build
from gossamer.engine.config import EngineConfig
from gossamer.engine.link import is_loopback, listen
from gossamer.models import Shard

# How long a rank waits in gloo for one that neither answers nor dies. Ranks only wait for how much
# faster they are than others, so this is far more than a busy machine needs.
TIMEOUT = timedelta(minutes=2)
JOINED, BUILT = "joined", "built"  # what a worker says on its way

# While the group is made: NCCL's own watchdog ends the process when a peer is gone, while rank 0
# has to tell. On one host gloo would listen where the host's name leads to, maybe another network.
ENVIRONMENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
LOOPBACK_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Start:
    """What a worker needs to begin. store: host and port of rank 0's. threads: of torch, for this
    rank; None for as many as it has.
    """

    config: EngineConfig
    shard: Shard
    backend: str
    store: tuple[str, int]
    threads: int | None


@dataclass(frozen=True)
class Failure:
    """Why a worker ended. when: time.time(), as ranks may be on several hosts."""

    kind: str
    text: str
    trace: str
    starting: bool
    when: float


def open_store(host: str) -> Any:
    """Rank 0's store, on a free port of this address alone: TCPStore by itself listens on all."""
    listening = listen(host)
    port = listening.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        master_listen_fd=listening.detach(),
    )


def join_group(store: Any, shard: Shard, backend: str) -> None:
    """Make the default group of torch.distributed; returns when all ranks do."""
    values = ENVIRONMENT | (LOOPBACK_ENVIRONMENT if is_loopback(store.host) else {})
    with _environment(values):
        dist.init_process_group(
            backend, store=store, rank=shard.rank, world_size=shard.size, timeout=TIMEOUT
        )


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """What the user has set stays as it is."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def run(pipe: Connection, gpu: int) -> int:
    """The life of a worker, until it is told to stop, fails, or rank 0 is gone; an exit code.

    gpu: that is its own, where ranks are on GPUs.
    """
    built = threading.Event()
    try:
        _serve(pipe, gpu, built)
    except BaseException as error:
        kind, trace = type(error).__name__, traceback.format_exc()
        failure = Failure(kind, str(error), trace, not built.is_set(), time.time())
        with suppress(OSError):  # rank 0 may be gone
            pipe.send(failure)
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """End the process without its clean-up: NCCL's waits for other ranks, which may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(pipe: Connection, gpu: int, built: threading.Event) -> None:
    start: Start | None = _receive(pipe)
    if start is None:
        return
    if start.threads is not None:
        torch.set_num_threads(start.threads)
    store = TCPStore(*start.store, is_master=False, timeout=TIMEOUT)
    pipe.send(JOINED)
    join_group(store, start.shard, start.backend)
    runner = build(start.config, start.shard, gpu).runner
    built.set()
    pipe.send(BUILT)
    while (message := _receive(pipe)) is not None:
        if isinstance(message, SetAdapter):
            runner.set_adapter(message)
        else:
            runner.run(message)


def _receive(pipe: Connection) -> Any:
    """The Start, or the next StepInput or SetAdapter; None when rank 0 wants no more or is gone."""
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return None

"""A rank above 0 of tensor parallelism: a process that runs what rank 0 sends it."""

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from gossamer.engine.build import build
from gossamer.engine.config import EngineConfig
from gossamer.engine.step import StepInput
from gossamer.models import Shard

LOOPBACK = "127.0.0.1"
# How long a rank waits in gloo for one that neither answers nor dies. Ranks only wait for how much
# faster they are than others, so this is far more than a busy machine needs.
TIMEOUT = timedelta(minutes=2)
JOINED, BUILT = "joined", "built"  # what a worker says on its way

# While the group is made. Gloo would listen where the host's name leads to, which may be another
# network; and NCCL's own watchdog ends the process when a peer is gone, while rank 0 has to tell.
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


@dataclass(frozen=True)
class Start:
    """What a worker needs to begin. port: of rank 0's store. threads: of torch, for this rank."""

    config: EngineConfig
    shard: Shard
    backend: str
    port: int
    threads: int


@dataclass(frozen=True)
class Failure:
    """Why a worker ended. when: time.monotonic(), which is the same in all processes."""

    kind: str
    text: str
    trace: str
    starting: bool
    when: float


def open_store() -> Any:
    """Rank 0's store, on a free port of the loopback alone: TCPStore by itself listens on all."""
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        master_listen_fd=listening.detach(),
    )


def join_group(store: Any, shard: Shard, backend: str) -> None:
    """Make the default group of torch.distributed; returns when all ranks do."""
    with _environment(ENVIRONMENT):
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


def main(start: Start, pipe: Connection) -> None:
    """The life of a worker, until it is told to stop, fails, or rank 0 is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all ranks; rank 0 decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code, built = 0, threading.Event()
    try:
        _serve(start, pipe, built)
    except BaseException as error:
        code = 1
        kind, trace = type(error).__name__, traceback.format_exc()
        failure = Failure(kind, str(error), trace, not built.is_set(), time.monotonic())
        with suppress(OSError):  # rank 0 may be gone
            pipe.send(failure)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no clean-up: NCCL's waits for other ranks, and these may be gone


def _serve(start: Start, pipe: Connection, built: threading.Event) -> None:
    torch.set_num_threads(start.threads)
    store = TCPStore(LOOPBACK, start.port, is_master=False, timeout=TIMEOUT)
    pipe.send(JOINED)
    join_group(store, start.shard, start.backend)
    runner = build(start.config, start.shard).runner
    built.set()
    pipe.send(BUILT)
    while (step := _receive(pipe)) is not None:
        runner.run(step)


def _receive(pipe: Connection) -> StepInput | None:
    """The next step; None when rank 0 wants no more or is gone."""
    try:
        step: StepInput | None = pipe.recv()
    except (EOFError, ConnectionResetError):
        return None
    return step


def _end_with_parent() -> None:
    """A rank that waits in a collective does not see the end of its pipe.

    The sentinel does not fire while a process that the parent forked has a copy of it.
    """
    parent = parent_process()
    assert parent is not None, "runs in a worker"
    while os.getppid() == parent.pid and not wait([parent.sentinel], timeout=1):
        pass
    os._exit(1)

"""Ranks as processes that rank 0 starts on its own host."""

import multiprocessing
import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait

import torch

from gossamer.engine import worker
from gossamer.engine.config import EngineConfig
from gossamer.engine.workers import PATIENCE, Launch

LOOPBACK = "127.0.0.1"


class RankProcess:
    """See Member."""

    advice = "see what it printed. A script that starts workers needs `if __name__ == '__main__':`"

    def __init__(self, rank: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        with theirs:  # only the worker's copy may stay open, or its end would not show
            self._process = context.Process(
                target=_main, args=(theirs, rank), name=f"gossamer rank {rank}", daemon=True
            )
            self._process.start()

    @property
    def sentinel(self) -> int:
        return self._process.sentinel

    def ending(self) -> str:
        self.join(PATIENCE)
        return f"ended with exit code {self._process.exitcode}"

    def join(self, seconds: float) -> None:
        self._process.join(seconds)

    def end(self, force: bool) -> None:
        if force:
            self._process.kill()
        else:
            self._process.terminate()


def launch(config: EngineConfig) -> Launch:
    """Raises ValueError where there are fewer GPUs than ranks."""
    size = config.tensor_parallel_size
    if config.device_type == "cuda" and size > torch.cuda.device_count():
        raise ValueError(
            f"tensor_parallel_size is {size}; must be at most {torch.cuda.device_count()}, "
            "the GPUs here"
        )
    members: dict[int, RankProcess] = {}
    try:
        for rank in range(1, size):
            members[rank] = RankProcess(rank)
    except BaseException:
        for member in members.values():
            member.end(force=True)
        raise
    return Launch(members, LOOPBACK, threads=max(1, torch.get_num_threads() // size))


def _main(pipe: Connection, rank: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all ranks; rank 0 decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker.leave(worker.run(pipe, gpu=rank))


def _end_with_parent() -> None:
    """A rank that waits in a collective does not see the end of its pipe.

    The sentinel does not fire while a process that the parent forked has a copy of it.
    """
    parent = parent_process()
    assert parent is not None, "runs in a worker"
    while os.getppid() == parent.pid and not wait([parent.sentinel], timeout=1):
        pass
    os._exit(1)

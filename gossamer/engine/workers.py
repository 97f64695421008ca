"""The processes of tensor parallelism, as rank 0 sees them: started, watched, ended."""

import multiprocessing
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from gossamer.engine import worker
from gossamer.engine.step import StepInput
from gossamer.engine.worker import Failure, Start

SETTLE = 0.3  # seconds to collect the failures that one failure causes, to name the first
PATIENCE = 3.0  # seconds for workers to end when told, and then again when terminated
# What `build` raises for bad options; a worker's are raised here as the same type.
REFUSALS = {kind.__name__: kind for kind in (ValueError, FileNotFoundError, ImportError)}


class WorkerDiedError(RuntimeError):
    """A rank of tensor parallelism is gone, with its part of the model and of the cache."""


class Workers:
    """Ranks 1 and up, and a thread that watches them.

    When one ends, the thread ends the others, whose connections close, and calls `interrupt`: then
    whatever rank 0 waits for returns or raises.
    """

    def __init__(self, starts: list[Start], interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._changed = threading.Condition()
        self._said: Counter[str] = Counter()
        self._cause: tuple[int, Failure | int] | None = None  # a rank, its failure or exit code
        # Reentrant, as garbage collection can end another executor in any thread.
        self._ending = threading.RLock()
        self._closing = False
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="gossamer watchdog", daemon=True)
        try:
            for start in starts:
                self._start(start)
            self._thread.start()
        except BaseException:
            self.close(patience=0)
            raise

    def _start(self, start: Start) -> None:
        context = multiprocessing.get_context("spawn")
        rank = start.shard.rank
        self._pipes[rank], theirs = context.Pipe()
        with theirs:  # only the worker's copy may stay open, or its end would not show
            process = context.Process(
                target=worker.main, args=(start, theirs), name=f"gossamer rank {rank}", daemon=True
            )
            process.start()
        self._processes[rank] = process

    # ---- for rank 0's thread --------------------------------------------------------------

    def send(self, step: StepInput) -> None:
        """To all, to be run. OSError if one is gone."""
        data = pickle.dumps(step, pickle.HIGHEST_PROTOCOL)
        for pipe in self._pipes.values():
            pipe.send_bytes(data)

    def wait_for(self, word: str) -> None:
        """Until all workers have said it. Raises what `error` returns."""
        count = len(self._pipes)
        with self._changed:
            self._changed.wait_for(lambda: self._said[word] == count or self._cause is not None)
        error = self.error()
        if error is not None:
            raise error

    def error(self, timeout: float = 0) -> Exception | None:
        """What ended the first worker that did; waits for it for `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._cause is not None, timeout)
        if self._cause is None:
            return None
        rank, cause = self._cause
        if isinstance(cause, int):
            return WorkerDiedError(f"rank {rank} ended with exit code {cause}{self._hint()}")
        if cause.starting and cause.kind in REFUSALS:
            return REFUSALS[cause.kind](cause.text)
        error = WorkerDiedError(f"rank {rank} failed: {cause.kind}: {cause.text}")
        error.add_note(f"In rank {rank}:\n{cause.trace}")
        return error

    def _hint(self) -> str:
        if self._said[worker.JOINED]:
            return ""
        return (
            " before it could say why; see what it printed. "
            "A script that starts workers needs `if __name__ == '__main__':`"
        )

    def close(self, patience: float = PATIENCE) -> None:
        """End all, after `patience` seconds by force; can be called twice."""
        with self._ending:
            self._closing = True
            for pipe in self._pipes.values():
                with suppress(OSError):  # gone, or closed before
                    pipe.send(None)
            self._join(patience)
            for force in ("terminate", "kill"):
                for process in self._processes.values():
                    getattr(process, force)()
                self._join(PATIENCE)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)
        for pipe in self._pipes.values():
            pipe.close()

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for process in self._processes.values():
            process.join(max(0.0, end - time.monotonic()))

    # ---- the watching thread --------------------------------------------------------------

    def _watch(self) -> None:
        ends = self._listen()
        with self._ending:
            if self._closing:
                return
            rank, failure = min(ends.items(), key=lambda end: end[1].when if end[1] else 0.0)
            if failure is None:
                self._processes[rank].join(PATIENCE)
            with self._changed:
                code = self._processes[rank].exitcode
                self._cause = (rank, failure or (-1 if code is None else code))
                self._changed.notify_all()
            for process in self._processes.values():
                process.terminate()
        self._interrupt()

    def _listen(self) -> dict[int, Failure | None]:
        """Until a worker ends, and a little longer: the ranks that did, with their failures.

        One that is killed says nothing, and then others fail as they cannot reach it.
        """
        sources: dict[Any, int] = {pipe: rank for rank, pipe in self._pipes.items()}
        sources |= {process.sentinel: rank for rank, process in self._processes.items()}
        ends: dict[int, Failure | None] = {}
        while not ends:
            for source in wait(list(sources)):
                self._hear(source, sources, ends)
        deadline = time.monotonic() + SETTLE
        while not self._closing and (left := deadline - time.monotonic()) > 0:
            for source in wait(list(sources), left):
                self._hear(source, sources, ends)
        return ends

    def _hear(self, source: Any, sources: dict[Any, int], ends: dict[int, Failure | None]) -> None:
        """One thing that happened: a word, a failure, the end of a pipe or of a process."""
        rank = sources[source]
        if isinstance(source, int):
            del sources[source]
            ends.setdefault(rank, None)
            return
        try:
            said = source.recv()
        except (EOFError, OSError):
            del sources[source]
            return
        if isinstance(said, Failure):
            ends[rank] = said
            return
        with self._changed:
            self._said[said] += 1
            self._changed.notify_all()

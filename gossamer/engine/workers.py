"""The other ranks of tensor parallelism, as rank 0 sees them: told, watched, ended."""

import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from gossamer.engine import worker
from gossamer.engine.adapters import SetAdapter
from gossamer.engine.step import StepInput
from gossamer.engine.worker import Failure, Start

SETTLE = 0.3  # seconds to collect the failures that one failure causes, to name the first
PATIENCE = 3.0  # seconds for workers to end when told, and then again when terminated
# What `build` raises for bad options; a worker's are raised here as the same type.
REFUSALS = {kind.__name__: kind for kind in (ValueError, FileNotFoundError, ImportError)}


class WorkerDiedError(RuntimeError):
    """A rank of tensor parallelism is gone, with its part of the model and of the cache."""


class Member(Protocol):
    """A rank above 0. pipe: to it; it closes when the rank ends."""

    pipe: Connection

    @property
    def sentinel(self) -> int | None:
        """Readable when its process has ended; None where the pipe has to tell."""
        ...

    @property
    def advice(self) -> str:
        """Where to look when it ended before it could say why."""
        ...

    def ending(self) -> str:
        """How it ended, once it has."""
        ...

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        ...

    def end(self, force: bool) -> None:
        """Make it end, also where it waits for other ranks."""
        ...


@dataclass(frozen=True)
class Launch:
    """Ranks that a launcher has started, which wait for their Start.

    host: where they reach rank 0. gpu: of rank 0, on GPUs. threads: of torch, for each rank; None
    for as many as it has. end: what is to be ended after the ranks.
    """

    members: Mapping[int, Member]
    host: str
    gpu: int = 0
    threads: int | None = None
    end: Callable[[], object] = lambda: None


class Workers:
    """Ranks 1 and up, and a thread that watches them.

    When one ends, the thread ends the others, whose connections close, and calls `interrupt`: then
    whatever rank 0 waits for returns or raises.
    """

    def __init__(self, members: Mapping[int, Member], interrupt: Callable[[], None]) -> None:
        self._members, self._interrupt = members, interrupt
        self._changed = threading.Condition()
        self._said: Counter[str] = Counter()
        self._cause: tuple[int, Failure | str] | None = None  # a rank, its failure or how it ended
        # Reentrant, as garbage collection can end another executor in any thread.
        self._ending = threading.RLock()
        self._closing = False
        self._thread = threading.Thread(target=self._watch, name="gossamer watchdog", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.close(patience=0)
            raise

    # ---- for rank 0's thread --------------------------------------------------------------

    def start(self, starts: Mapping[int, Start]) -> None:
        """To each rank its own."""
        for rank, start in starts.items():
            with suppress(OSError):  # `wait_for` tells
                self._members[rank].pipe.send(start)

    def send(self, message: StepInput | SetAdapter) -> None:
        """To all, to be run. OSError if one is gone."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for member in self._members.values():
            member.pipe.send_bytes(data)

    def wait_for(self, word: str) -> None:
        """Until all workers have said it. Raises what `error` returns."""
        count = len(self._members)
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
        if isinstance(cause, str):
            return WorkerDiedError(f"rank {rank} {cause}{self._hint(self._members[rank])}")
        if cause.starting and cause.kind in REFUSALS:
            return REFUSALS[cause.kind](cause.text)
        error = WorkerDiedError(f"rank {rank} failed: {cause.kind}: {cause.text}")
        error.add_note(f"In rank {rank}:\n{cause.trace}")
        return error

    def _hint(self, member: Member) -> str:
        return "" if self._said[worker.JOINED] else f" before it could say why; {member.advice}"

    def close(self, patience: float = PATIENCE) -> None:
        """End all, after `patience` seconds by force; can be called twice."""
        with self._ending:
            self._closing = True
            for member in self._members.values():
                with suppress(OSError):  # gone, or closed before
                    member.pipe.send(None)
            self._join(patience)
            for force in (False, True):
                for member in self._members.values():
                    member.end(force)
                self._join(PATIENCE)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(PATIENCE)
        for member in self._members.values():
            member.pipe.close()

    def _join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for member in self._members.values():
            member.join(max(0.0, end - time.monotonic()))

    # ---- the watching thread --------------------------------------------------------------

    def _watch(self) -> None:
        ends = self._listen()
        with self._ending:
            if self._closing:
                return
            rank, failure = min(ends.items(), key=lambda end: end[1].when if end[1] else 0.0)
            cause = failure or self._members[rank].ending()
            with self._changed:
                self._cause = (rank, cause)
                self._changed.notify_all()
            for member in self._members.values():
                member.end(force=False)
        self._interrupt()

    def _listen(self) -> dict[int, Failure | None]:
        """Until a worker ends, and a little longer: the ranks that did, with their failures.

        One that is killed says nothing, and then others fail as they cannot reach it.
        """
        sources: dict[Any, int] = {}
        for rank, member in self._members.items():
            sources[member.pipe] = rank
            if member.sentinel is not None:
                sources[member.sentinel] = rank
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
            if self._members[rank].sentinel is None:
                ends.setdefault(rank, None)
            return
        if isinstance(said, Failure):
            ends[rank] = said
            return
        with self._changed:
            self._said[said] += 1
            self._changed.notify_all()

"""The process of the engines."""

import logging
import queue
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from gossamer.engine import LLM
from gossamer.server.child import READY, Refused, listen, set_up
from gossamer.server.host import EngineHost
from gossamer.workloads.loading import loaded, warm_up

log = logging.getLogger("gossamer.server")
WARM_UP_TOKENS = 64
# What options, files and memory are to blame for; a line says enough.
EXPECTED = (ValueError, OSError, ImportError, MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class EngineStart:
    """caches: KV specs, one for each engine. options: of EngineConfig. queue, profiles and
    log_format: of Limits and Settings."""

    model: str
    caches: tuple[str, ...]
    options: dict[str, Any]
    queue: int
    profiles: Path | None
    log_format: str = "text"


def main(start: EngineStart, pipe: Connection) -> None:
    """Load the engines and run what API processes send, until told to stop."""
    set_up(start.log_format)
    connections: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
    listen(pipe, connections.put, lambda: connections.put(None))
    with ExitStack() as stack:
        try:
            engines = load_engines(start, stack)
        except Exception as error:
            if not isinstance(error, EXPECTED):
                log.exception("the engine cannot be loaded")
            pipe.send(Refused(type(error).__name__, str(error)))
            return
        host = EngineHost(engines, start.queue, start.profiles)
        host.start()
        pipe.send(READY)
        while (connection := connections.get()) is not None:
            host.attach(connection)
        host.close()


def load_engines(start: EngineStart, stack: ExitStack) -> dict[str, LLM]:
    """Loaded and warmed up, by cache; closed with the stack."""
    engines = {
        kv: stack.enter_context(loaded(start.model, kv=kv, **start.options)) for kv in start.caches
    }
    for kv, llm in engines.items():
        _log(kv, llm)
        warm_up(llm, [0] * WARM_UP_TOKENS)
    return engines


def _log(kv: str, llm: LLM) -> None:
    built = llm.engine.built
    log.info(
        "%s on %s: KV cache %s, up to %d tokens, %d stored and %d dense pages",
        built.source.name,
        built.device,
        kv,
        built.max_model_len,
        built.size.stored_pages,
        built.size.dense_pages,
    )

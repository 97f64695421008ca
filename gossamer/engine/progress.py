"""A line that says how far generation is, how fast, and what the cache takes."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from gossamer.engine.engine import Engine
from gossamer.engine.outputs import Delta


class Progress:
    """Requests done, prefill and decode tokens per second, KV memory used and saved."""

    def __init__(self, engine: Engine, requests: int, *, shown: bool) -> None:
        self._engine, self._shown = engine, shown
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        self._bar = Bar(*columns, TimeElapsedColumn(), console=console, disable=not shown)
        self._task = self._bar.add_task("requests", total=requests)
        self._start = time.perf_counter()
        self._before = (engine.stats.prompt_tokens, engine.stats.output_tokens)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, delta: Delta) -> None:
        """After each increment of an output."""
        if not self._shown:
            return
        engine, seconds = self._engine, time.perf_counter() - self._start
        prompt, output = engine.stats.prompt_tokens, engine.stats.output_tokens
        prefill, decode = prompt - self._before[0], output - self._before[1]
        used, dense = engine.kv_bytes, engine.kv_bytes_dense
        message = f"prefill {prefill / seconds:,.0f} tok/s, decode {decode / seconds:,.0f} tok/s"
        if used:
            message += f", KV {used / 1e6:,.1f} MB"
        if 0 < used < dense:
            message += f" ({1 - used / dense:.0%} saved)"
        finished = delta.finish_reason is not None and delta.request.finished
        self._bar.update(self._task, description=message, advance=float(finished))

"""How far an evaluation is, and when it will be done."""

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Bar:
    """One bar for the task that runs, on stderr; lines about those that have ended stay above it.

    A log, where bars cannot move, gets the lines alone.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._console = shown, Console(stderr=True, soft_wrap=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24))
        times = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        moves = shown and self._console.is_terminal
        self._bars = Progress(*columns, *times, console=self._console, disable=not moves)
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._bars.stop()

    def start(self, words: str, total: int | None, done: int) -> None:
        """A new task; total None if only time will tell."""
        self._end()
        self._bar = self._bars.add_task(words, total=total, completed=done)

    def advance(self) -> None:
        if self._bar is not None:
            self._bars.advance(self._bar)

    def say(self, words: str) -> None:
        """A line that stays."""
        self._end()
        if self._shown:
            self._console.print(Text(words), highlight=False)

    def _end(self) -> None:
        if self._bar is not None:
            self._bars.remove_task(self._bar)
            self._bar = None

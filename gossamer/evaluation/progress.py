"""How far an evaluation or a search is, and when it will be done."""

import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Display:
    """A bar on stderr, and lines that stay above it; a log, where bars cannot move, gets those."""

    def __init__(self, *columns: ProgressColumn, shown: bool) -> None:
        self._shown, self._console = shown, Console(stderr=True, soft_wrap=True)
        label = TextColumn("{task.description}", markup=False)
        moves = shown and self._console.is_terminal
        self._bars = Progress(
            *(label, BarColumn(bar_width=24), *columns),
            console=self._console,
            transient=True,
            disable=not moves,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._shown:
            self._console.print(Text(line), highlight=False)


class Bar(_Display):
    """One bar for the task that runs; lines are about those that have ended."""

    def __init__(self, *, shown: bool) -> None:
        columns = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        super().__init__(*columns, shown=shown)
        self._bar: TaskID | None = None

    def start(self, label: str, total: int | None, done: int) -> None:
        """A new task; total None if only time will tell."""
        self._end()
        self._bar = self._bars.add_task(label, total=total, completed=done)

    def advance(self) -> None:
        if self._bar is not None:
            self._bars.advance(self._bar)

    def say(self, line: str) -> None:
        self._end()
        super().say(line)

    def _end(self) -> None:
        if self._bar is not None:
            self._bars.remove_task(self._bar)
            self._bar = None


class Stages(_Display):
    """One bar for all stages of a search; lines are about what was found, with the time left.

    Work is counted in windows of text.
    """

    def __init__(self, *, shown: bool) -> None:
        super().__init__(TimeElapsedColumn(), TextColumn("{task.fields[left]}"), shown=shown)
        self._bar = self._bars.add_task("", total=None, left="")
        self._begin = time.monotonic()
        self.total, self.done = 0.0, 0.0

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        return super().__enter__()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begin

    def expect(self, windows: float) -> None:
        """There is more to do; less, if negative."""
        self.total = max(self.total + windows, self.done)
        self._update()

    def advance(self, windows: float = 1.0) -> None:
        self.done += windows
        self._update()

    def time_for(self, windows: float, minutes: float | None) -> bool:
        """Whether `windows` more are done before the minutes are over; None: always."""
        each = self.seconds / self.done if self.done else 0.0
        return minutes is None or self.seconds + each * windows <= minutes * 60

    def start(self, label: str) -> None:
        """What is being done."""
        self._bars.update(self._bar, description=label)

    def say(self, line: str) -> None:
        super().say(line + (f" ({self.left})" if self.left else ""))

    @property
    def left(self) -> str:
        """`about 7 min left`; empty when nothing is known, or nothing is left."""
        if self.done <= 0 or self.total <= self.done:
            return ""
        seconds = self.seconds / self.done * (self.total - self.done)
        return f"about {seconds / 60:.0f} min left" if seconds >= 60 else "under a minute left"

    def _update(self) -> None:
        self._bars.update(self._bar, total=self.total, completed=self.done, left=self.left)

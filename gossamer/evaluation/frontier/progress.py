"""How far a search is, in all its stages together, and when it will be done."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text


class Stages:
    """One bar for the whole search on stderr; lines about what was found stay above it.

    Work is counted in windows of text. A log, where bars cannot move, gets the lines alone.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._console = shown, Console(stderr=True, soft_wrap=True)
        words = TextColumn("{task.description}", markup=False)
        left = TextColumn("{task.fields[left]}")
        moves = shown and self._console.is_terminal
        columns = (words, BarColumn(bar_width=24), TimeElapsedColumn(), left)
        self._bars = Progress(*columns, console=self._console, disable=not moves)
        self._bar = self._bars.add_task("", total=None, left="")
        self._begin = time.monotonic()
        self.total, self.done = 0.0, 0.0

    def __enter__(self) -> Self:
        self._begin = time.monotonic()
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.remove_task(self._bar)
        self._bars.stop()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begin

    def expect(self, windows: float) -> None:
        """So much more to do; less, if negative."""
        self.total = max(self.total + windows, self.done)
        self._update()

    def advance(self, windows: float = 1.0) -> None:
        self.done += windows
        self._update()

    def time_for(self, windows: float, minutes: float | None) -> bool:
        """Whether so many windows more are done before the minutes are over; None: always."""
        each = self.seconds / self.done if self.done else 0.0
        return minutes is None or self.seconds + each * windows <= minutes * 60

    def start(self, words: str) -> None:
        """What is being done."""
        self._bars.update(self._bar, description=words)

    def say(self, words: str) -> None:
        """A line that stays, with the time that is left."""
        if self._shown:
            left = f" ({self.left})" if self.left else ""
            self._console.print(Text(words + left), highlight=False)

    @property
    def left(self) -> str:
        """`about 7 min left`; empty when nothing is known, or nothing is left."""
        if self.done <= 0 or self.total <= self.done:
            return ""
        seconds = self.seconds / self.done * (self.total - self.done)
        return f"about {seconds / 60:.0f} min left" if seconds >= 60 else "under a minute left"

    def _update(self) -> None:
        self._bars.update(self._bar, total=self.total, completed=self.done, left=self.left)

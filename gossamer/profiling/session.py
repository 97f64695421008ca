"""`gossamer.profile()`: a profile of a piece of code, as files and as a table."""

from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from gossamer.profiling.kernels import KernelTime, kernels_table
from gossamer.profiling.recorder import Recorder

TRACE, REPORT = "profile_trace.json", "profile_report.txt"


class Profile:
    """A context manager; see `profile`. After it, `kernels` has the time by kernel."""

    def __init__(
        self, folder: str | Path, *, show: Console | None, memory: bool, all_threads: bool
    ) -> None:
        self.folder = Path(folder)
        self.kernels: list[KernelTime] = []
        self._show = show
        self._recorder = Recorder(memory=memory, all_threads=all_threads)

    @property
    def trace(self) -> Path:
        """The Chrome trace."""
        return self.folder / TRACE

    @property
    def report(self) -> Path:
        """torch's table, as text."""
        return self.folder / REPORT

    def __enter__(self) -> Self:
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file; must be a folder for the profile")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._recorder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Also after an error: what led to it may be what one wants to see."""
        recording = self._recorder.stop()
        recording.write_trace(self.trace)
        self.report.write_text(recording.report + "\n")
        self.kernels = recording.kernels
        if self._show is not None:
            self._show.print(kernels_table(self.kernels))
            self._show.print(f"written: {self.trace}, {self.report}", markup=False)


def profile(
    folder: str | Path = ".",
    *,
    show: bool = True,
    console: Console | None = None,
    memory: bool = True,
    all_threads: bool = False,
) -> Profile:
    """Profile what happens inside `with gossamer.profile("folder") as p:`.

    Writes folder/profile_trace.json (Chrome trace) and folder/profile_report.txt (torch's table by
    time, with memory), prints the time by kernel unless show is False (console: where to), and
    leaves it in p.kernels. CPU ops of this thread and all GPU kernels are seen. all_threads: CPU
    ops of all threads, without memory.
    Raises ValueError where `folder` is a file, RuntimeError inside another profile.
    """
    where = (console or Console()) if show else None
    return Profile(folder, show=where, memory=memory, all_threads=all_threads)

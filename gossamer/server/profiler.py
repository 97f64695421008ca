"""The profiler behind /v1/gossamer/profiler."""

import time
from pathlib import Path

from gossamer.profiling import Recorder


class Profiler:
    """Used in the engines' thread: torch records what the calling thread does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._recorder = Recorder(memory=False)

    def start(self) -> str:
        """RuntimeError if it runs already."""
        self._recorder.start()
        return "running"

    def stop(self) -> str:
        """Write a trace for chrome://tracing or Perfetto; its name. RuntimeError if none runs."""
        recording = self._recorder.stop()
        name = f"trace-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}.json"
        recording.write_trace(self._folder / name)
        return name

"""torch's profiler around the steps of the engines."""

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class Profiler:
    """To be used in the thread of the engines: torch records what the calling thread does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._running: profile | None = None

    def start(self) -> str:
        """RuntimeError if it runs already."""
        if self._running is not None:
            raise RuntimeError("the profiler is running; must be stopped first")
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._running = profile(activities=kinds)
        self._running.start()
        return "running"

    def stop(self) -> str:
        """Write a trace for chrome://tracing or Perfetto; its name. RuntimeError if none runs."""
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("the profiler is not running; must be started first")
        running.stop()
        name = f"trace-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}.json"
        running.export_chrome_trace(str(self._folder / name))
        return name

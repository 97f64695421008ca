"""torch's profiler with the settings that all profiles here have in common."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from gossamer.profiling.kernels import KernelTime, kernel_times

ROWS = 60  # of the report


@dataclass(frozen=True, eq=False)
class Recording:
    """What was recorded; `events` is torch's own object."""

    events: torch_profile

    @property
    def kernels(self) -> list[KernelTime]:
        """Time by kernel, the longest first: on the GPU if it did something, else of CPU ops."""
        return kernel_times(self.events.key_averages())

    @property
    def report(self) -> str:
        """torch's table of ops, kernels and memory, by the time of the GPU or of the CPU."""
        averages = self.events.key_averages()
        on_device = any(k.on_device for k in kernel_times(averages))
        order = "self_device_time_total" if on_device else "self_cpu_time_total"
        table: str = averages.table(sort_by=order, row_limit=ROWS)
        return table

    @property
    def allocations(self) -> list[int]:
        """Bytes that torch took from (or, negative, gave back to) the CPU's memory, in order."""
        profiler: Any = self.events.profiler
        events = profiler.kineto_results.events()
        found = [e for e in events if e.name() == "[memory]"]
        on_cpu = [e for e in found if e.device_type().name == "CPU"]
        return [e.nbytes() for e in sorted(on_cpu, key=lambda e: e.start_ns())]

    def write_trace(self, path: Path) -> None:
        """A Chrome trace: for Perfetto, chrome://tracing, TensorBoard."""
        self.events.export_chrome_trace(str(path))


class Recorder:
    """Records CPU ops and GPU kernels between `start` and `stop`.

    torch records the CPU ops of the thread that starts it; GPU kernels of all threads.
    all_threads: CPU ops of all threads, but then torch does not see allocations.
    """

    def __init__(self, *, memory: bool = True, all_threads: bool = False) -> None:
        self._memory = memory and not all_threads
        self._all_threads = all_threads
        self._running: torch_profile | None = None

    def start(self) -> None:
        """RuntimeError if it runs already."""
        if self._running is not None:
            raise RuntimeError("the profiler is running; must be stopped first")
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        config = _ExperimentalConfig(profile_all_threads=True) if self._all_threads else None
        running = torch_profile(
            activities=kinds, profile_memory=self._memory, experimental_config=config
        )
        running.start()
        self._running = running

    def stop(self) -> Recording:
        """RuntimeError if it does not run."""
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("the profiler is not running; must be started first")
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # kernels that are still to run belong to it
        running.stop()
        return Recording(running)

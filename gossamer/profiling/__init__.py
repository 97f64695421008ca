"""Where the time goes: torch's profiler, with files that other tools read.

`with gossamer.profile("folder"):` in code, `gossamer profile -- COMMAND` for a whole program.
"""

from gossamer.profiling.kernels import KernelTime, kernel_times, kernels_table
from gossamer.profiling.recorder import Recorder, Recording
from gossamer.profiling.session import REPORT, TRACE, Profile, profile

__all__ = [
    "REPORT",
    "TRACE",
    "KernelTime",
    "Profile",
    "Recorder",
    "Recording",
    "kernel_times",
    "kernels_table",
    "profile",
]

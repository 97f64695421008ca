"""Measuring: one driver for every number this project publishes.

`benchmark_kernel(fn, *args)` times one call. `measure(...)` also checks the timed results against
an oracle; `Record` is one line of a results file.
"""

from gossamer.bench.measure import Measurement, WrongResultError, measure
from gossamer.bench.record import Record, describe_device, read_records, write_records
from gossamer.bench.timing import Timing, benchmark_kernel, copy_bandwidth

__all__ = [
    "Measurement",
    "Record",
    "Timing",
    "WrongResultError",
    "benchmark_kernel",
    "copy_bandwidth",
    "describe_device",
    "measure",
    "read_records",
    "write_records",
]

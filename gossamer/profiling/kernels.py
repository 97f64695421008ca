"""Time by kernel: what a profile says in a few lines."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

# Allocations are events too, and what the profiler itself does on the GPU.
NOT_WORK = ("[memory]", "Activity Buffer Request", "Activity Buffer Flush", "Command Buffer Full")


@dataclass(frozen=True)
class KernelTime:
    """One kernel (or CPU op, without what it calls): calls, milliseconds, share of all of them."""

    name: str
    calls: int
    total_ms: float
    share: float
    on_device: bool


def kernel_times(averages: Iterable[Any]) -> list[KernelTime]:
    """Kernels on the GPU where there are any, else CPU ops; the longest first.

    averages: of torch's `key_averages()`.
    """
    # A range that a program names is listed in addition to the kernels in it.
    events = [
        e for e in averages if e.key not in NOT_WORK and not getattr(e, "is_user_annotation", False)
    ]
    device = [e for e in events if e.device_type.name != "CPU" and e.self_device_time_total]
    times = [
        (e.key, e.count, (e.self_device_time_total if device else e.self_cpu_time_total) / 1e3)
        for e in device or events
    ]
    whole = sum(ms for _, _, ms in times)
    return sorted(
        (
            KernelTime(name, n, ms, ms / whole if whole else 0.0, bool(device))
            for name, n, ms in times
        ),
        key=lambda kernel: -kernel.total_ms,
    )


def kernels_table(kernels: Sequence[KernelTime], rows: int = 15) -> Table:
    """The first `rows` of them, and what the others take together."""
    device = bool(kernels) and kernels[0].on_device
    title = "kernels on the GPU" if device else "ops on the CPU (without what they call)"
    table = Table(title=title, title_justify="left")
    table.add_column("name", overflow="fold")
    for name in ("calls", "ms", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for k in kernels[:rows]:
        table.add_row(escape(k.name), f"{k.calls:,}", f"{k.total_ms:,.3f}", f"{k.share:.1%}")
    rest = kernels[rows:]
    if rest:
        ms, share = sum(k.total_ms for k in rest), sum(k.share for k in rest)
        calls = sum(k.calls for k in rest)
        table.add_row(f"{len(rest)} others", f"{calls:,}", f"{ms:,.3f}", f"{share:.1%}")
    return table

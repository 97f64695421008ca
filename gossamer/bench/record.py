"""One measured point, as one JSON line that says where and with what it was measured."""

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from gossamer._version import __version__
from gossamer.bench.measure import Measurement
from gossamer.ops.checks import dtype_name


@dataclass(frozen=True)
class Record:
    """One line of a results file. `bytes` and `flops` are what the op needs at the least.

    facts: what else is to be known about a point, e.g. what a dense cache would take.
    """

    op: str
    backend: str  # a gossamer backend, or the name of a peer
    shape: list[int]
    dtype: str
    variant: str  # what else distinguishes the point, e.g. "approximate=tanh"
    median_ms: float
    low_ms: float
    high_ms: float
    host_ms: float  # time to issue a call; on a CPU the median again
    iterations: int
    bytes: int
    gbps: float
    flops: int
    tflops: float
    ceiling_gbps: float  # measured copy bandwidth
    ceiling_share: float
    max_error: float
    relative_error: float
    device: str
    versions: dict[str, str] = field(default_factory=dict)
    revision: str = ""
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def point(self) -> tuple[str, str, tuple[int, ...], str]:
        """What records must have in common to be compared: op, dtype, shape, variant."""
        return self.op, self.dtype, tuple(self.shape), self.variant

    @classmethod
    def of(
        cls,
        measurement: Measurement,
        *,
        op: str,
        backend: str,
        shape: Iterable[int],
        dtype: torch.dtype,
        variant: str,
        bytes: int,
        flops: int,
        ceiling_gbps: float,
        device: str,
        facts: Mapping[str, float] | None = None,
    ) -> "Record":
        """A measurement with everything that is to be known about it."""
        timing = measurement.timing
        gbps = bytes / timing.median_ms / 1e6
        return cls(
            op=op,
            backend=backend,
            shape=list(shape),
            dtype=dtype_name(dtype),
            variant=variant,
            **{name: _rounded(value) for name, value in asdict(timing).items()},
            bytes=bytes,
            gbps=_rounded(gbps),
            flops=flops,
            tflops=_rounded(flops / timing.median_ms / 1e9),
            ceiling_gbps=_rounded(ceiling_gbps),
            ceiling_share=_rounded(gbps / ceiling_gbps),
            max_error=_rounded(measurement.max_error),
            relative_error=_rounded(measurement.relative_error),
            device=describe_device(device),
            versions=versions(),
            revision=revision(),
            facts={name: _rounded(value) for name, value in (facts or {}).items()},
        )


def _rounded(value: float) -> Any:
    """Four digits: more would be noise in a committed file."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


def write_records(records: Iterable[Record], path: Path) -> None:
    """Replace `path` with these records, one JSON line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(_line(record)) + "\n" for record in records))


def _line(record: Record) -> dict[str, Any]:
    values = asdict(record)
    return values if values["facts"] else {k: v for k, v in values.items() if k != "facts"}


def read_records(path: Path) -> list[Record]:
    """The records of a results file. Raises ValueError, with file and line, for anything else."""
    names = {f.name for f in fields(Record)}
    records = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is not JSON: {error}") from None
        if not isinstance(values, dict) or set(values) | {"facts"} != names:
            raise ValueError(
                f"{path}:{number} is not a record; must have {', '.join(sorted(names))}"
            )
        records.append(Record(**values))
    return records


def describe_device(device: str) -> str:
    """The GPU's name, or the CPU's with the number of threads torch uses."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    return f"{_cpu_name()}, {torch.get_num_threads()} threads"


def device_folder(device: str) -> str:
    """`describe_device` as a folder name: nvidia-h200, amd-epyc-2-threads."""
    return re.sub(r"[^a-z0-9]+", "-", describe_device(device).lower()).strip("-")


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0].strip() if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what a number depends on."""
    found = {
        "gossamer": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    for name, package in (("triton", "triton"), ("flashinfer", "flashinfer-python")):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(package)
    return found


@functools.cache
def revision() -> str:
    """The git revision of the sources; GOSSAMER_REVISION names it where git is not at hand.

    Looked up once: a run rewrites tracked result files and would call itself dirty.
    """
    if "GOSSAMER_REVISION" in os.environ:
        return os.environ["GOSSAMER_REVISION"]
    root = Path(__file__).parents[2]
    if not (root / "csrc").is_dir():  # an installed package, perhaps inside another repository
        return "unknown"
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return result.stdout.strip()

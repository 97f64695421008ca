"""What works on this machine: facts for `gossamer doctor`, without any printing."""

from dataclasses import dataclass, field
from functools import partial

import torch

from gossamer import native
from gossamer.bench.record import describe_device, versions
from gossamer.ops import OPS, Op
from gossamer.ops.checks import FLOAT_DTYPES


@dataclass(frozen=True)
class Cell:
    """One op on one backend: state "works", "unavailable" (and why) or "broken" (and how)."""

    op: str
    backend: str
    device: str
    state: str
    detail: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `gossamer doctor` prints; it fails when there are problems."""

    versions: dict[str, str]
    devices: list[str]
    cpu_features: list[str]
    libraries: list[native.Library]
    cpu_isa: str | None
    cells: list[Cell]
    tuned: dict[str, str]  # op: what its CUDA kernel takes; Triton takes the rest
    problems: list[str] = field(default_factory=list)


def diagnose() -> Diagnosis:
    """Look at this machine and run every available backend of every op once, on a small input."""
    cells = [_try(op, backend) for op in OPS.values() for backend in op.backends]
    return Diagnosis(
        versions=versions(),
        devices=_devices(),
        cpu_features=_cpu_features(),
        libraries=[native.cpu, native.cuda],
        cpu_isa=native.cpu_isa(),
        cells=cells,
        tuned={op.name: op.tuned for op in OPS.values() if op.tuned is not None},
        problems=_library_problems()
        + [f"{c.op} on {c.backend}: {c.detail}" for c in cells if c.state == "broken"],
    )


def _devices() -> list[str]:
    found = [describe_device("cpu")]
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        memory = properties.total_memory / 2**30
        arch = f"sm_{properties.major}{properties.minor}"
        found.append(f"{properties.name}, {arch}, {memory:.0f} GiB")
    return found


def _cpu_features() -> list[str]:
    """Instruction sets of this CPU that matter to the kernels, as torch reports them."""
    capabilities = torch.cpu.get_capabilities()
    vectors = ("avx2", "fma3", "f16c", "avx512_f", "avx512_bf16", "avx512_fp16", "amx_bf16")
    return [name for name in (*vectors, "neon", "sve") if capabilities.get(name)]


def _library_problems() -> list[str]:
    """A library that is missing: the CPU one always, the CUDA one if there is a GPU."""
    problems = []
    if native.cpu.problem:
        problems.append(f"{native.cpu.problem}: reinstall gossamer")
    if torch.cuda.is_available() and native.cuda.problem:
        problems.append(
            f"{native.cuda.problem}: reinstall with GOSSAMER_CUDA=ON and nvcc on the PATH"
        )
    return problems


def _try(op: Op, backend: str) -> Cell:
    device = "cuda" if torch.cuda.is_available() and backend != "cpu" else "cpu"
    reason = op.why_not(backend, device)
    if backend == "cuda" and device == "cpu":
        reason = native.cuda.problem or "no CUDA GPU is visible"
    if reason is not None:
        return Cell(op.name, backend, device, "unavailable", reason)
    try:
        for dtype in FLOAT_DTYPES:
            args = op.example(partial(torch.randn, device=device, dtype=dtype))
            if backend in op.unsuited(device, args):
                continue
            expected = op.outputs(*args, backend="reference")
            limit = None if op.tolerance is None else op.tolerance[dtype]
            got = op.outputs(*args, backend=backend)
            torch.testing.assert_close(got, expected, rtol=limit, atol=limit)
    except Exception as error:  # whatever it is, it is the answer
        return Cell(op.name, backend, device, "broken", f"{type(error).__name__}: {error}")
    return Cell(op.name, backend, device, "works")

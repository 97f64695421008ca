"""The two native libraries: where they are, whether they loaded, and if not, why.

Loading one registers its kernels with torch's dispatcher; nothing else is in them.
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Library:
    """One native library; `problem` is None when it is loaded."""

    name: str
    path: Path | None
    problem: str | None

    @property
    def loaded(self) -> bool:
        return self.problem is None


def _find(name: str) -> Path | None:
    """The library next to this file or, in an editable install, where the import system has it."""
    here = Path(__file__).with_name(f"{name}.so")
    if here.is_file():
        return here
    spec = importlib.util.find_spec(f"gossamer.{name}")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def _why_unwanted(backend: str) -> str | None:
    """GOSSAMER_BACKENDS=reference,triton leaves the libraries out: is it a kernel's fault?"""
    wanted = os.environ.get("GOSSAMER_BACKENDS")
    if not wanted or backend in wanted.split(","):
        return None
    return f"left out by GOSSAMER_BACKENDS={wanted}"


def _load(name: str, unsupported: str | None = None) -> Library:
    path = _find(name)
    if path is None:
        return Library(name, None, f"{name}.so is not built")
    if unsupported is not None:
        return Library(name, path, unsupported)
    try:
        torch.ops.load_library(path)
    except OSError as error:
        return Library(name, path, f"{path} does not load: {error}")
    return Library(name, path, None)


def _why_no_cuda() -> str | None:
    return "this torch is built without CUDA" if torch.version.cuda is None else None


cpu = _load("_C", _why_unwanted("cpu"))
# Its kernels implement schemas that the CPU library declares.
cuda = _load("_C_cuda", _why_unwanted("cuda") or _why_no_cuda() or cpu.problem)


def cpu_isa() -> str | None:
    """The instruction set of the CPU kernels: generic, avx2 or avx512; None when not loaded."""
    return str(torch.ops.gossamer.cpu_isa()) if cpu.loaded else None

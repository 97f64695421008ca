"""The backends an op can run on, and how a caller chooses one."""

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import torch

from gossamer import native

BACKENDS = ("reference", "cpu", "triton", "cuda")

# What a caller may get on which device, best first. Triton's interpreter is for tests: CPU tensors
# get it only when it is asked for by name.
PREFERENCE = {
    "cpu": ("cpu", "reference", "triton"),
    "cuda": ("cuda", "triton", "reference"),
}


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run this op on this device."""


# Whether Triton kernels run in Triton's interpreter, which takes CPU tensors. Triton reads the same
# variable when the kernels are first imported, so it is fixed for the life of the process.
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


def _why_not_triton(device: str) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device == "cpu" and not TRITON_INTERPRETED:
        return "needs a GPU, or TRITON_INTERPRET=1 for the interpreter"
    return None


# Fixed at import, so that choosing a backend is a dictionary look-up that torch.compile can trace.
_PROBLEMS: dict[tuple[str, str], str | None] = {
    ("cpu", "cpu"): native.cpu.problem,
    ("cuda", "cuda"): native.cuda.problem,
    ("triton", "cpu"): _why_not_triton("cpu"),
    ("triton", "cuda"): _why_not_triton("cuda"),
}


def why_not(backend: str, device: str) -> str | None:
    """Why `backend` cannot run on tensors of device type `device` here; None when it can."""
    if backend == "reference":
        return None
    return _PROBLEMS.get((backend, device), f"does not run on {device} tensors")


def check_name(backend: str) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; must be one of {', '.join(BACKENDS)}")
    return backend


class _Choice(threading.local):
    names: tuple[str, ...] = ()


_choice = _Choice()
# The same for torch.compile, which in 2.11 misreads a thread-local and in no version reads a
# ContextVar: a plain object, which it guards on. Compiled code of other threads follows it too.
_traced_choice = SimpleNamespace(names=())


def chosen() -> tuple[str, ...]:
    """The backends named by the innermost `use_backend`, or ()."""
    if torch.compiler.is_compiling():
        names: tuple[str, ...] = _traced_choice.names
        return names
    return _choice.names


@contextmanager
def use_backend(*names: str) -> Iterator[None]:
    """Run every gossamer op of this thread on the first of `names` that is available.

    `use_backend("triton")` insists; `use_backend("triton", "reference")` allows a fallback. A
    `backend=` argument of a call wins. Raises ValueError for an unknown name, and the op raises
    BackendUnavailableError when none of them can run it.
    """
    if not names:
        raise ValueError(f"use_backend needs at least one of {', '.join(BACKENDS)}")
    previous = _choice.names
    _choice.names = _traced_choice.names = tuple(check_name(name) for name in names)
    try:
        yield
    finally:
        _choice.names = _traced_choice.names = previous

"""The backends an op can run on, and how a caller chooses one."""

import importlib.util
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes")


def parse_names(text: str | None) -> tuple[str, ...]:
    """The backends of GOSSAMER_BACKENDS, names with commas between them; all where it is empty.

    Raises ValueError for an unknown name.
    """
    names = tuple(text.split(",")) if text else BACKENDS
    if not set(names) <= set(BACKENDS):
        raise ValueError(f"GOSSAMER_BACKENDS is {text!r}; must be some of {','.join(BACKENDS)}")
    return names


# What may be used, for the life of the process. gossamer.native reads it as well, because a library
# takes part once it is loaded.
_ALLOWED = parse_names(os.environ.get("GOSSAMER_BACKENDS"))


def _why_not_triton(device: str) -> str | None:
    if "triton" not in _ALLOWED:
        return f"left out by GOSSAMER_BACKENDS={','.join(_ALLOWED)}"
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
    """The name itself; ValueError when there is no such backend."""
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}; must be one of {', '.join(BACKENDS)}")
    return backend


class _Choice:
    names: tuple[str, ...] = ()


class _ThreadChoice(_Choice, threading.local):
    pass


_choice = _ThreadChoice()
# The same for torch.compile, which in 2.11 misreads a thread-local and in no version reads a
# ContextVar: a plain object, which it guards on and can write to.
_traced_choice = _Choice()


def chosen() -> tuple[str, ...]:
    """The backends named by the innermost `use_backend`, or ()."""
    return _traced_choice.names if torch.compiler.is_compiling() else _choice.names


def chosen_here() -> tuple[str, ...]:
    """The same where torch.compile does not look."""
    return _choice.names


@contextmanager
def use_backend(*names: str) -> Iterator[None]:
    """Run every gossamer op of this thread on the first of `names` that is available.

    `use_backend("triton")` insists; `use_backend("triton", "reference")` allows a fallback. A
    `backend=` argument of a call wins. Works around and inside compiled functions; but compiled
    code also follows a `use_backend` of another thread while that lasts. Raises ValueError for an
    unknown name; an op raises BackendUnavailableError when none of them can run it.
    """
    if not names:
        raise ValueError(f"use_backend needs at least one of {', '.join(BACKENDS)}")
    for name in names:
        check_name(name)
    with _set(_traced_choice, names):
        if torch.compiler.is_compiling():
            yield
        else:
            with _set(_choice, names):
                yield


@contextmanager
def _set(choice: _Choice, names: tuple[str, ...]) -> Iterator[None]:
    previous = choice.names
    choice.names = names
    try:
        yield
    finally:
        choice.names = previous

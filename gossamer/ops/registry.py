"""An op: one schema, one meaning, several backends.

Every backend is an overload of the torch op `torch.ops.gossamer.<name>`, so that torch.compile,
torch.export and opcheck see plain custom ops:

- `.default`: C++ on CPU tensors, CUDA C++ on CUDA tensors; where a library is missing, the best of
  the others;
- `.reference`: plain torch, on any device;
- `.triton`: the Triton kernel.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from gossamer.ops.backends import (
    BACKENDS,
    PREFERENCE,
    BackendUnavailableError,
    check_name,
    chosen,
    chosen_here,
    why_not,
)

_library = Library("gossamer", "FRAGMENT")

OPS: dict[str, "Op"] = {}

# Where torch keeps the kernels of the native backends, and the libraries that bring them.
_DISPATCH = {"cpu": ("CPU", "_C.so"), "cuda": ("CUDA", "_C_cuda.so")}

_NOTHING: Mapping[str, str] = {}


class Op:
    """Registers an op with torch and runs it on the backend the caller wants.

    reference: the meaning, in plain torch; its signature is the op's schema.
    check: raises ValueError or TypeError for bad arguments; same arguments as `reference`.
    fake: what the result looks like (shape, dtype, device), for tracing.
    check_values: raises ValueError for bad numbers inside tensors on the CPU, which tracing
    cannot see; numbers on a GPU are not looked at, because that would wait for them.
    mutates: the arguments that the op writes to; such an op returns nothing.
    example: small valid arguments; `make(*shape)` makes a random tensor.
    triton: "module:function" that launches the Triton kernel, imported at the first call.
    limits: why the CUDA kernel cannot take these arguments, None when it can; they then go to the
    next best backend. Same arguments as `reference`.
    tuned: what the CUDA kernel takes, in words, where it has limits.
    tolerance: how far backends may be apart in `gossamer doctor`, relative and absolute, by dtype;
    None for torch.testing's defaults.
    """

    def __init__(
        self,
        name: str,
        *,
        reference: Callable[..., Any],
        check: Callable[..., None],
        fake: Callable[..., Any],
        example: Callable[[Callable[..., Tensor]], tuple[Any, ...]],
        check_values: Callable[..., None] | None = None,
        mutates: tuple[str, ...] = (),
        triton: str | None = None,
        native_backends: tuple[str, ...] = ("cpu", "cuda"),
        limits: Callable[..., str | None] | None = None,
        tuned: str | None = None,
        tolerance: Mapping[torch.dtype, float] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.tuned = tuned
        self.tolerance = tolerance
        self.reference = reference
        self.mutates = mutates
        names = list(inspect.signature(reference).parameters)
        self._written = [names.index(name) for name in mutates]
        self.example = example
        self._check_structure = check
        self._check_values = check_values
        self._fake = _guarded(check, fake)
        self._native = native_backends
        # `.default` first: `torch.ops.gossamer.<name>(...)` takes the first overload that fits.
        self._overloads = dict.fromkeys(native_backends, self._define_default())
        self._overloads["reference"] = self._define("reference", reference)
        if triton is not None:
            self._overloads["triton"] = self._define("triton", _imported(triton))
        # What can run on which device, best first; fixed now, so that choosing is a look-up.
        self._runnable = {
            device: {b: self._overloads[b] for b in order if not self.why_not(b, device)}
            for device, order in PREFERENCE.items()
        }
        self._runnable["meta"] = dict.fromkeys(self.backends, self._overloads["reference"])
        OPS[self.name] = self

    @property
    def schema(self) -> str:
        """The schema that the reference's signature implies, without a name."""
        inferred = str(torch.library.infer_schema(self.reference, mutates_args=self.mutates))
        return inferred.replace("SymInt", "int")  # sizes of formats, which shapes do not follow

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends this op has code for, available or not."""
        return tuple(name for name in BACKENDS if name in self._overloads)

    def why_not(self, backend: str, device: str) -> str | None:
        """Why `backend` cannot run this op on `device` tensors here; None when it can."""
        if backend not in self._overloads:
            return f"{self.name} has no {backend} backend"
        return why_not(backend, device) or self._left_out(backend)

    def _left_out(self, backend: str) -> str | None:
        """Why a native library that loads has no kernel of this op: it is older than the op."""
        key, library = _DISPATCH.get(backend, ("", ""))
        if not key or torch._C._dispatch_has_kernel_for_dispatch_key(f"gossamer::{self.name}", key):
            return None
        return f"{library} has no {self.name}; build it again"

    def available(self, device: str) -> tuple[str, ...]:
        """The backends that can run this op on tensors of this device type."""
        return tuple(name for name in BACKENDS if self.why_not(name, device) is None)

    def check(self, *args: Any) -> None:
        """Raises TypeError or ValueError for arguments that the op refuses."""
        self._check_structure(*args)
        if self._check_values is not None:
            self._check_values(*args)

    def outputs(self, *args: Any, backend: str | None = None) -> tuple[Tensor, ...]:
        """All tensors that a call makes or writes to; the arguments themselves stay as they are."""
        copies = self.with_copies(args)
        return self.results(self(*copies, backend=backend), copies)

    def with_copies(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments, with copies of those that a call writes to."""
        return tuple(a.clone() if i in self._written else a for i, a in enumerate(args))

    def results(self, returned: Any, args: Sequence[Any]) -> tuple[Tensor, ...]:
        """The tensors that a call with these arguments returned or wrote to."""
        return flat(returned) + tuple(args[i] for i in self._written)

    def __call__(self, *args: Any, backend: str | None = None) -> Any:
        # Every overload checks its own arguments. Those in C++ cost nothing but speak tersely, so
        # `check` explains: checking here first would take 1 to 2 us, as long as a small op.
        if torch.is_grad_enabled():
            self._refuse_gradients(args)
        try:
            if (
                backend is None and self.limits is None and plain_cpu(args[0])
            ):  # a decode step has 270 of these
                return next(iter(self._runnable["cpu"].values()))(*args)
            device = device_type(args[0])
            unsuited = self.unsuited(device, args) if self.limits is not None else _NOTHING
            return self.select(device, backend, unsuited)(*args)
        except (RuntimeError, AttributeError) as error:
            failure = error
        self.check(*args)
        raise failure

    def unsuited(self, device: str, args: Sequence[Any]) -> Mapping[str, str]:
        """The backends that could run on this device but not with these arguments, and why."""
        if self.limits is None or device != "cuda":
            return _NOTHING
        reason = self.limits(*args)
        return _NOTHING if reason is None else {"cuda": reason}

    def select(
        self, device: str, backend: str | None = None, unsuited: Mapping[str, str] = _NOTHING
    ) -> Any:
        """The overload to call for tensors of this device type; see `choose`."""
        overloads = self._overloads_on(device)
        if backend is None and not unsuited and not chosen():
            return next(iter(overloads.values()))
        return overloads[self.choose(device, backend, unsuited)]

    def choose(
        self, device: str, backend: str | None = None, unsuited: Mapping[str, str] = _NOTHING
    ) -> str:
        """The backend that runs on tensors of this device type, none of the `unsuited` ones.

        Raises ValueError for an unknown backend, BackendUnavailableError for one that cannot run.
        """
        runnable = self._overloads_on(device)
        wanted = (check_name(backend),) if backend is not None else chosen()
        for name in wanted or runnable:
            if name in runnable and name not in unsuited:
                return name
        reasons = [f"{name}: {unsuited.get(name) or self.why_not(name, device)}" for name in wanted]
        raise BackendUnavailableError(
            f"{self.name} on {device} tensors: {'; '.join(reasons)}. "
            f"Available: {', '.join(self.available(device))}"
        )

    def _overloads_on(self, device: str) -> dict[str, Any]:
        return self._runnable.get(device) or {"reference": self._overloads["reference"]}

    def _refuse_gradients(self, args: tuple[Any, ...]) -> None:
        for arg in args:
            if isinstance(arg, Tensor) and arg.requires_grad:
                raise RuntimeError(
                    f"{self.name} has no gradient and an argument requires one; "
                    "call it under torch.no_grad() or torch.inference_mode()"
                )

    def _define(self, overload: str, function: Callable[..., Any]) -> Any:
        qualified = f"{self.name}.{overload}"
        _library.define(qualified + self.schema)
        _library.impl(qualified, _guarded(self.check, function), "CompositeExplicitAutograd")
        torch.library.register_fake(f"gossamer::{qualified}", self._fake, lib=_library)
        return getattr(getattr(torch.ops.gossamer, self.name), overload)

    def _define_default(self) -> Any:
        """`.default`: declared by the C++ library, or here where there is no C++ for this op."""
        if not hasattr(torch.ops.gossamer, self.name):
            _library.define(self.name + self.schema)
        # Kernels of the native libraries take precedence over this one.
        _library.impl(self.name, self._without_native, "CompositeExplicitAutograd")
        torch.library.register_fake(f"gossamer::{self.name}", self._fake, lib=_library)
        return getattr(torch.ops.gossamer, self.name).default

    def _without_native(self, *args: Any) -> Any:
        device = args[0].device.type if isinstance(args[0], Tensor) else ""  # which is refused
        runnable = self._runnable.get(device, {})
        others = (o for name, o in runnable.items() if name not in self._native)
        return next(others, self._overloads["reference"])(*args)


def plain_cpu(tensor: Tensor) -> bool:
    """Whether it is on a CPU, and nobody chose a backend: then there is nothing to decide."""
    return not torch.compiler.is_compiling() and tensor.is_cpu and not chosen_here()


def device_type(tensor: Tensor) -> str:
    """`tensor.device.type`, which takes 0.5 us; `is_cpu` and `is_cuda` take a tenth of that.

    But Dynamo would put those into the graph.
    """
    if not torch.compiler.is_compiling():
        if tensor.is_cuda:
            return "cuda"
        if tensor.is_cpu:
            return "cpu"
    return tensor.device.type


def flat(result: Any) -> tuple[Tensor, ...]:
    """What an op returned, as a tuple of tensors."""
    return (result,) if isinstance(result, Tensor) else tuple(result or ())


def _guarded(check: Callable[..., None], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, after `check` of the same arguments."""

    def guarded(*args: Any) -> Any:
        check(*args)
        return function(*args)

    return guarded


def _imported(path: str) -> Callable[..., Any]:
    """A function "module:name" that is imported when it is first called."""
    module, _, name = path.partition(":")

    @functools.cache
    def target() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function

    def call(*args: Any) -> Any:
        return target()(*args)

    return call

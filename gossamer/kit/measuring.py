"""The facts about an op, found by running it: its suite, its specification, a profile."""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer.bench.measure import WrongResultError, argument_bytes, check_results
from gossamer.bench.record import device_folder, read_records
from gossamer.bench.suite import Case, PeerUnavailableError, Suite
from gossamer.kit.checklist import Fallback, Memory, Parity, Profiled
from gossamer.kit.checkout import load, this_checkout
from gossamer.kit.memory import peak_beyond
from gossamer.kit.pages import undocumented
from gossamer.kit.speed import Point, points_of, recorded
from gossamer.ops import OPS, BackendUnavailableError
from gossamer.ops.checks import FLOAT_DTYPES, dtype_name
from gossamer.profiling import Recorder


def suite_of(name: str) -> Suite:
    """`SUITE` of benchmarks/suites/<name>.py. ValueError where this is no checkout, or has none."""
    module = load(f"benchmarks.suites.{name}")
    suite = getattr(module, "SUITE", None)
    if not isinstance(suite, Suite):
        raise ValueError(f"benchmarks/suites/{name}.py has no SUITE; must have one to be checked")
    return suite


def best_device(name: str) -> str:
    """Where an op is at its best, as its suite says; the CPU where there is no GPU."""
    on_gpu = bool({"triton", "cuda"} & set(OPS[name].backends)) and suite_of(name).best == "cuda"
    return "cuda" if on_gpu and torch.cuda.is_available() else "cpu"


class Running:
    """A `Measure` that runs the op; quick: small sizes, few repetitions.

    results: a folder of result files, whose speeds are taken for those ops that they have; `source`
    is then the file and the revision that was measured.
    """

    def __init__(
        self, name: str, device: str, *, quick: bool = False, results: Path | None = None
    ) -> None:
        self.op = OPS[name]
        self.device = device
        self.quick = quick
        self.suite = suite_of(name)
        self.source = ""
        self._points: list[Point] | None = None
        if results is not None:
            self._take(results / device_folder(device) / f"{name}.jsonl")

    def _take(self, path: Path) -> None:
        if points := recorded(path):
            revisions = sorted({r.revision for r in read_records(path)})
            self.source = f"{path}, revision {', '.join(revisions)}"
            self._points = points

    @torch.inference_mode()
    def parities(self) -> list[Parity]:
        """On the suite's small cases, the op's examples, and its specification's odd shapes."""
        return [self._parity(b) for b in self.op.available(self.device)]

    def _parity(self, backend: str) -> Parity:
        inputs, errors = 0, dict[str, float]()
        try:
            for case, dtype in self._small_cases():
                args, name = case.make_args(dtype, self.device), dtype_name(dtype)
                try:
                    error = self._error(case, args, backend)
                except BackendUnavailableError:  # the kernel has limits
                    continue
                inputs, errors[name] = inputs + 1, max(errors.get(name, 0.0), error)
            inputs += self._examples(backend) + self._specified(backend)
        except (WrongResultError, AssertionError) as wrong:
            return Parity(backend, inputs, errors, " ".join(str(wrong).split()))
        return Parity(backend, inputs, errors, "" if inputs else "takes none of the inputs")

    def _small_cases(self) -> Iterator[tuple[Case, torch.dtype]]:
        for case in self.suite.cases(self.device, True):
            for dtype in case.dtypes:
                yield case, dtype

    def _error(self, case: Case, args: tuple[Any, ...], backend: str | None) -> float:
        kept = self.op.with_copies(args)
        got = self._call(case, args, backend)
        return check_results(got, self.suite.expected(*kept), self.suite.tolerance)

    def _call(self, case: Case, args: tuple[Any, ...], backend: str | None = None) -> Any:
        return self.suite.call(case.wrap(partial(self.op, backend=backend)), *args)

    def _examples(self, backend: str) -> int:
        """The op's own examples against the reference, as in `gossamer doctor`.

        A suite of an op that writes in place has inputs that repeated calls leave as they are.
        """
        count = 0
        for dtype in FLOAT_DTYPES:
            args = self.op.example(partial(_random, dtype=dtype, device=self.device))
            if backend in self.op.unsuited(self.device, args):
                continue
            want = self.op.outputs(*args, backend="reference")
            limit = None if self.op.tolerance is None else self.op.tolerance[dtype]
            got = self.op.outputs(*args, backend=backend)
            torch.testing.assert_close(got, want, rtol=limit, atol=limit)
            count += 1
        return count

    def _specified(self, backend: str) -> int:
        """Inputs of `SPEC` in tests/ops/test_<op>.py that a backend passed; 0 where it has none."""
        try:
            spec = getattr(load(f"tests.ops.test_{self.op.name}"), "SPEC", None)
            grid: Any = load("tests.ops.spec")
        except ImportError:  # pytest is not a requirement of the package
            return 0
        if spec is None:
            return 0
        count = 0
        for dtype in FLOAT_DTYPES:
            make = partial(_random, dtype=dtype, device=self.device)
            factor = grid.rounding_factor(backend, dtype)
            for shape in spec.shapes():
                for args in spec.inputs(shape, make):
                    spec.check(self.op(*args, backend=backend), args, factor)
                    count += 1
        return count

    def points(self) -> list[Point]:
        """Those of the result file, else of a run of the suite, which happens once."""
        if self._points is None:
            self._points = points_of(self.suite.run(self.device, self.quick, lambda _: None))
        return self._points

    def _largest(self) -> Case:
        """The largest case that has a peer."""
        cases = list(self.suite.cases(self.device, self.quick))
        with_peer = [c for c in cases if c.peers or c.adapted]
        if not with_peer:
            raise ValueError(f"no case of {self.op.name} has a peer")
        return max(with_peer, key=lambda c: math.prod(c.shape))

    @torch.inference_mode()
    def memory(self) -> Memory:
        """Ours and the peer's at the largest case."""
        case = self._largest()
        dtype = next(iter(case.dtypes))
        args = case.make_args(dtype, self.device)
        name, peer = _peer(case, args)
        ours = partial(case.wrap(self.op), *args)
        point = " ".join(("x".join(map(str, case.shape)), dtype_name(dtype), case.variant))
        results = self.suite.call(case.wrap(self.op), *self.op.with_copies(args))
        return Memory(
            ours=peak_beyond(ours, self.device),
            peer=peak_beyond(peer, self.device),
            peer_name=name,
            tensors=argument_bytes(args) + argument_bytes(results),
            point=point.strip(),
        )

    @torch.inference_mode()
    def fallbacks(self) -> list[Fallback]:
        """In new processes: what is available is fixed when the package is imported."""
        settings = ["reference"]
        if self.device == "cuda" and "triton" in self.op.backends:
            settings.append("reference,triton")
        return [self._fallback(backends) for backends in settings]

    def _fallback(self, backends: str) -> Fallback:
        case, dtype = next(self._small_cases())
        args = case.make_args(dtype, self.device)
        kept = self.op.with_copies(args)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "call.pt")
            torch.save(tuple(args), path)
            command = [sys.executable, "-m", "gossamer.kit.bare", self.op.name, self.device]
            root = str(this_checkout())
            paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
            changed = {"GOSSAMER_BACKENDS": backends, "PYTHONPATH": os.pathsep.join(paths)}
            child = subprocess.run(
                [*command, str(path)],
                env=os.environ | changed,
                capture_output=True,
                text=True,
                check=False,
            )
            if child.returncode:
                return Fallback(backends, "", (child.stderr.splitlines() or ["no result"])[-1])
            results = torch.load(path.with_suffix(".out"), weights_only=True)
        try:
            check_results(results, self.suite.expected(*kept), self.suite.tolerance)
        except WrongResultError as wrong:
            return Fallback(backends, child.stdout.strip(), str(wrong))
        return Fallback(backends, child.stdout.strip())

    @torch.inference_mode()
    def profile(self) -> Profiled | None:
        """One call at the largest case, after a first one."""
        case = self._largest()
        args = case.make_args(next(iter(case.dtypes)), self.device)
        self._call(case, args)
        recorder = Recorder(memory=False)
        recorder.start()
        self._call(case, args)
        recording = recorder.stop()
        kernels, own = recording.kernels, f"gossamer::{self.op.name}"
        if own not in {e.key for e in recording.events.key_averages()} or not kernels:
            return None
        if self.device == "cuda" and not kernels[0].on_device:
            return None
        # On a CPU the op itself is the kernel; on a GPU it is whatever ran there for it.
        first = kernels[0] if kernels[0].on_device else next(k for k in kernels if k.name == own)
        return Profiled(first.name, first.share, len(kernels), sum(k.total_ms for k in kernels))

    def undocumented(self) -> Sequence[str]:
        """Docstring, page, index."""
        return undocumented(self.op.name, this_checkout())


def _random(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def _peer(case: Case, args: tuple[Any, ...]) -> tuple[str, Callable[[], Any]]:
    """The peer "eager", or the first that runs; its own inputs are made here, not in the call."""
    if case.peers:
        name = "eager" if "eager" in case.peers else next(iter(case.peers))
        return name, partial(case.peers[name], *args)
    for name, adapt in case.adapted.items():
        try:
            return name, adapt(*args)
        except PeerUnavailableError:
            continue
    raise ValueError(f"no peer of {case.shape} runs here")

"""A benchmark of one op: its points, its peers, and the command line that runs it."""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from gossamer.bench.measure import MAX_RELATIVE_ERROR, Measurement, measure
from gossamer.bench.record import Record, device_folder, write_records
from gossamer.bench.table import records_table
from gossamer.bench.timing import copy_bandwidth
from gossamer.ops import BACKENDS, OPS
from gossamer.ops.checks import FLOAT_DTYPES

RESULTS = Path("benchmarks/results")
MEAN, WORST = 1.2, 0.9  # speed-up that an op must have to ship

Call = Callable[..., Any]
Prepare = Callable[..., Callable[[], Any]]


class PeerUnavailableError(RuntimeError):
    """A peer cannot run here, or not at this point."""


@dataclass(frozen=True)
class Case:
    """One shape and variant of an op.

    make_args: random arguments for (dtype, device). peers: what users would call instead, by name;
    "eager" is the baseline. adapted: peers that take other inputs: from the op's arguments, before
    timing, each makes a call without arguments, or raises PeerUnavailableError. bytes: memory
    traffic the op needs, from its arguments. wrap: how a backend of ours is called, if not
    directly. prepare: see `measure`; for our backends. backends: which of ours to time; all by
    default. facts: for the record.
    """

    shape: tuple[int, ...]
    make_args: Callable[[torch.dtype, str], tuple[Any, ...]]
    peers: Mapping[str, Call]
    bytes: Callable[..., int]
    flops: int
    variant: str = ""
    wrap: Callable[[Call], Call] = lambda call: call
    adapted: Mapping[str, Prepare] = field(default_factory=dict)
    prepare: Prepare = partial
    dtypes: Collection[torch.dtype] = FLOAT_DTYPES
    backends: Collection[str] = BACKENDS
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Speed-up over eager PyTorch (or over the fastest peer, where a suite has no "eager").

    mean: of the geometric mean over all points of the suite. worst: of every single point. A
    suite that asks for less than 1.2 and 0.9 says why; `gossamer check-op` prints it.
    """

    mean: float = MEAN
    worst: float = WORST
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.mean < MEAN or self.worst < WORST) and not self.reason:
            raise ValueError(
                f"a target of {self.mean:g}x and {self.worst:g}x is below {MEAN}x and {WORST}x; "
                "must have a reason"
            )


USUAL = Target()


@dataclass(frozen=True)
class Suite:
    """All cases of one op; `cases(device, quick)` yields them.

    exact: compare with the reference on the same arguments, not in float64. oracle: what to
    compare with instead of the reference. tolerance: see `measure`. target: what `gossamer
    check-op` asks for, where that is not 1.2x. best: the device on which the op gains most over
    its peers, where `check-op` looks if it is not told; GEMMs of many rows on a GPU, say, are
    cuBLAS's own, and there is little to gain. file: of results, where an op has several suites.
    """

    op: str
    cases: Callable[[str, bool], Iterable[Case]]
    exact: bool = False
    oracle: Call | None = None
    tolerance: Mapping[torch.dtype, float] = field(default_factory=MAX_RELATIVE_ERROR.copy)
    target: Target = USUAL
    best: str = "cuda"
    file: str = ""

    def __post_init__(self) -> None:
        if self.best not in ("cpu", "cuda"):
            raise ValueError(f"best of {self.op} is {self.best!r}; must be cpu or cuda")

    @torch.inference_mode()
    def run(self, device: str, quick: bool, on_record: Callable[[Record], None]) -> list[Record]:
        """Measure every peer and every available backend at every case, in inference mode."""
        records = []
        for case in self.cases(device, quick):
            for dtype in case.dtypes:
                for record in self._points(case, dtype, device, quick):
                    on_record(record)
                    records.append(record)
        return records

    def _points(self, case: Case, dtype: torch.dtype, device: str, quick: bool) -> Iterable[Record]:
        make_args = partial(case.make_args, dtype, device)
        needed_bytes = case.bytes(*make_args())
        for name, fn, prepare in self._runs(case, device):
            try:
                result = self._measure(fn, prepare, make_args, device, quick)
            except PeerUnavailableError as error:
                warnings.warn(f"{self.op} {case.shape}: no {name}: {error}", stacklevel=2)
                continue
            yield Record.of(
                result,
                op=self.op,
                backend=name,
                shape=case.shape,
                dtype=dtype,
                variant=case.variant,
                bytes=needed_bytes,
                flops=case.flops,
                ceiling_gbps=copy_bandwidth(device),
                device=device,
                facts=case.facts,
            )

    def _runs(self, case: Case, device: str) -> Iterable[tuple[str, Call, Prepare]]:
        """Name, function and how it becomes a call: of the peers, then of our backends."""
        for name, peer in case.peers.items():
            yield name, partial(self.call, peer), partial
        for name, adapted in case.adapted.items():
            yield name, adapted, _adapt
        op = OPS[self.op]
        # Not the reference, and not Triton's interpreter: neither is meant to be fast.
        slow = {"reference", "triton" if device == "cpu" else ""}
        for backend in op.available(device):
            if backend in case.backends and backend not in slow:
                ours = case.wrap(partial(op, backend=backend))
                yield backend, partial(self.call, ours), case.prepare

    def _measure(
        self,
        fn: Call,
        prepare: Prepare,
        make_args: Callable[[], tuple[Any, ...]],
        device: str,
        quick: bool,
    ) -> Measurement:
        warmup, iters = (3, 10) if quick else (10, 30) if device == "cpu" else (20, 100)
        return measure(
            fn,
            make_args,
            self.expected,
            warmup=warmup,
            iters=iters,
            preserve=OPS[self.op].with_copies,
            prepare=prepare,
            tolerance=self.tolerance,
        )

    def call(self, fn: Call, *args: Any) -> tuple[Tensor, ...]:
        """The tensors that `fn(*args)` returns or writes to."""
        return OPS[self.op].results(fn(*args), args)

    def expected(self, *args: Any) -> Any:
        """What a call with these arguments should give, in higher precision unless `exact`."""
        if self.oracle is not None:
            return self.oracle(*args)
        if self.exact:
            return OPS[self.op].outputs(*args, backend="reference")
        wide = (a.double() if isinstance(a, Tensor) else a for a in args)
        return OPS[self.op].reference(*wide)


def _adapt(adapted: Prepare, *args: Any) -> Callable[[], Any]:
    return adapted(*args)


def tensor_bytes(*tensors: Tensor) -> int:
    """Bytes of these tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def main(*suites: Suite) -> None:
    """The command line of `python -m benchmarks.suites.<op>`."""

    def command(
        device: Annotated[
            str, typer.Option(help="cpu or cuda; default: cuda if there is one")
        ] = "",
        quick: Annotated[
            bool, typer.Option("--quick", help="small sizes, few repetitions")
        ] = False,
        results: Annotated[
            Path | None, typer.Option(help=f"folder for the result files; default: {RESULTS}")
        ] = None,
        only: Annotated[list[str] | None, typer.Option(help="ops; repeatable")] = None,
    ) -> None:
        if unknown := set(only or ()) - {suite.op for suite in suites}:
            known = ", ".join(suite.op for suite in suites)
            raise typer.BadParameter(f"only is {unknown.pop()!r}; must be one of {known}")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device not in ("cpu", "cuda"):
            raise typer.BadParameter(f"device is {device!r}; must be cpu or cuda")
        console = Console()
        if not console.is_terminal:  # a log has room for whole rows
            console = Console(width=160)
        # A glance does not replace results that took longer to measure.
        folder = results if results or quick else RESULTS
        records: list[Record] = []
        for suite in suites:
            if only and suite.op not in only:
                continue
            with console.status(suite.op) as status:
                found = suite.run(
                    device, quick, lambda r: status.update(f"{r.op} {r.shape} {r.backend}")
                )
            records += found
            if folder is not None:
                name = f"{suite.file or suite.op}.jsonl"
                write_records(found, folder / device_folder(device) / name)
        console.print(records_table(records))
        if folder is not None:
            console.print(f"written to {folder / device_folder(device)}")

    typer.run(command)

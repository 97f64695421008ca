"""Whole models under sparse masks: gossamer's fusion against eager, torch.compile, FlexAttention.

    python -m benchmarks.end_to_end.fusion --models bert-base --shapes 16x2048 --seconds 280

A line for each way at each model, shape and mask. Every way's result is compared with the plain
model in float32. `eager`, `compile`, `graphs` and `autotune` get the mask as a tensor; the last
three are torch.compile's modes default, reduce-overhead and max-autotune. `flex` and `flex-graphs`
are the first two of these over FlexAttention. Ours: `gossamer` (both parts), `attention` and
`fusion` (one of them), `tuned` (both, after the tuner), with CUDA graphs as `--mode` says. A way
that fails is a line of failures/fusion.jsonl, and is tried again the next time.
"""

import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

import gossamer
from benchmarks.peers.fusion import CURRENT, mark_cross, redirect, set_mask
from gossamer.bench import (
    Measurement,
    Record,
    Timing,
    WrongResultError,
    copy_bandwidth,
    read_records,
    write_records,
)
from gossamer.bench.record import describe_device, device_folder, revision
from gossamer.fusion.backend import Options
from gossamer.fusion.tuning import tune
from gossamer.masks import Mask, named
from gossamer.ops.checks import one_of
from gossamer.profiling import kernel_times
from gossamer.workloads.transformers_models import CONFIGS, build, inputs_of, tokens_of

OP = "fusion"
RESULTS = Path(__file__).parents[1] / "results"
MASKS = ("stof-bigbird", "stof-longformer", "stof-sliding", "causal")
DENSE = {
    "eager": None,
    "compile": "default",
    "graphs": "reduce-overhead",
    "autotune": "max-autotune",
}
FLEX = {"flex": "default", "flex-graphs": "reduce-overhead"}
OURS: dict[str, dict[str, Any]] = {
    "gossamer": {},
    "attention": {"fuse": False},
    "fusion": {"attention": False},
    "tuned": {},
}
WAYS = (*DENSE, *FLEX, *OURS)
# Relative to the plain model in float32; deep models with random weights amplify rounding.
TOLERANCE = {torch.float16: 0.02, torch.bfloat16: 0.12, torch.float32: 1e-3}
KERNELS = 12  # of the longest that are named in a record
SMALL = 8192  # tokens, up to which ours is given CUDA graphs with --mode auto


@dataclass
class Subject:
    """A model at a shape: weights, inputs, and the same model in float32."""

    name: str
    batch: int
    n: int
    dtype: torch.dtype
    device: str
    model: Any = field(init=False)
    masked: Any = field(init=False)  # the same weights, attention through AttentionInterface
    _compiled: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = build(self.name, self.n, self.dtype, self.device)
        self.inputs = inputs_of(self.model, self.batch, self.n)
        self.tokens = tokens_of(self.model, self.n)
        self.masked = build(self.name, self.n, self.dtype, self.device)
        self.masked.load_state_dict(self.model.state_dict())
        mark_cross(self.masked)
        redirect(self.masked)

    @cached_property
    def wide(self) -> Any:
        """The plain model with the same weights in float32."""
        wide = build(self.name, self.n, torch.float32, self.device)
        wide.load_state_dict(self.model.state_dict())
        mark_cross(wide)
        redirect(wide)
        return wide

    def want(self, mask: Mask) -> Tensor:
        """The plain model's result in float32 under the dense mask."""
        set_mask(self.wide, mask, self.tokens, flex=False)
        given = {
            k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v
            for k, v in self.inputs.items()
        }
        return first(self.wide(**given))

    def way(self, name: str, mask: Mask, mode: str | None, facts: dict[str, float]) -> Any:
        """The call that is timed. Dense ways are compiled once for all masks."""
        if name in OURS:
            return self._ours(name, mask, mode, facts)
        set_mask(self.masked, mask, self.tokens, flex=name in FLEX)
        if name == "eager":
            return self.masked
        if name in FLEX:  # for another mask it is another kernel
            return torch.compile(self.masked, mode=FLEX[name], dynamic=False)
        if name not in self._compiled:
            self._compiled[name] = torch.compile(self.masked, mode=DENSE[name], dynamic=False)
        return self._compiled[name]

    def _ours(self, name: str, mask: Mask, mode: str | None, facts: dict[str, float]) -> Any:
        if name == "tuned":
            budget = facts.pop("budget")
            outcome = tune(self.model, (), self.inputs, Options(mask=mask, mode=mode), budget)
            for tuned in outcome.graphs:
                facts.update({f"tune_{what}_s": took for what, took in tuned.seconds.items()})
                facts.update({f"trials_{what}": count for what, count in tuned.trials.items()})
                facts["tune_unfused_ms"] = tuned.unfused_us / 1e3
                facts["tune_ms"] = tuned.us / 1e3
        cache = name == "tuned"
        return gossamer.optimize(self.model, mask, mode=mode, cache=cache, **OURS[name])


def first(out: Any) -> Tensor:
    """The hidden states that a model returns."""
    found: Tensor = out[0]
    return found


def error_of(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want).norm() / want.norm())


def timed(call: Callable[[], Any], device: str, iters: int) -> Timing:
    """Milliseconds of a call among others of its kind: what the device or the host needs."""
    samples = []
    for _ in range(5):
        _finish(device)
        start = time.perf_counter()
        for _ in range(iters):
            call()
        issued = time.perf_counter() - start
        _finish(device)
        samples.append((1e3 * (time.perf_counter() - start) / iters, 1e3 * issued / iters))
    low, median, high = np.quantile([ms for ms, _ in samples], (0.1, 0.5, 0.9))
    host = float(np.median([ms for _, ms in samples]))
    return Timing(float(median), float(low), float(high), host, 5 * iters)


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def kernels(call: Callable[[], Any], device: str) -> dict[str, float]:
    """How many kernels a call runs, and how often those that take the longest."""
    activity = torch.profiler.ProfilerActivity
    kinds = [activity.CPU] + ([activity.CUDA] if device == "cuda" else [])
    with torch.profiler.profile(activities=kinds) as profile:
        call()
        _finish(device)
    found = kernel_times(profile.key_averages())
    longest = {f"kernel {kernel.name[:80]}": float(kernel.calls) for kernel in found[:KERNELS]}
    return {"kernels": float(sum(kernel.calls for kernel in found)), **longest}


def measured(
    subject: Subject, way: str, mask_name: str, mask: Mask, want: Tensor, options: "Settings"
) -> Record:
    """WrongResultError where the result is not the plain model's."""
    facts: dict[str, float] = {"budget": options.budget} if way == "tuned" else {}
    mode = options.mode_for(subject)
    started = time.perf_counter()
    program = subject.way(way, mask, mode, facts)

    def call() -> Any:
        return program(**subject.inputs)

    for _ in range(3):  # compiles, warms up, records graphs
        got = first(call()).clone()
    facts["compile_s"] = time.perf_counter() - started - facts.get("tune_total_s", 0.0)
    error, allowed = error_of(got, want), TOLERANCE[subject.dtype]
    if not error <= allowed:
        raise WrongResultError(f"{way}: error {error:.3g}; must be at most {allowed}")
    timing = timed(call, subject.device, options.iters)
    error = max(error, error_of(first(call()), want))
    if not error <= allowed:
        raise WrongResultError(f"{way}: error {error:.3g} later; must be at most {allowed}")
    facts.update(kernels(call, subject.device))
    weights = sum(p.numel() for p in subject.model.parameters())
    ours = f" mode={mode or 'default'}" if way in OURS else ""
    return Record.of(
        Measurement(timing, 0.0, error),
        op=OP,
        backend=way,
        shape=[subject.batch, subject.n],
        dtype=subject.dtype,
        variant=f"model={subject.name} mask={mask_name}{ours}",
        bytes=weights * subject.dtype.itemsize,
        flops=2 * weights * subject.batch * subject.n,
        ceiling_gbps=copy_bandwidth(subject.device),
        device=subject.device,
        facts=facts,
    )


@dataclass(frozen=True)
class Settings:
    """mode: of ours; auto: CUDA graphs up to SMALL tokens. budget: of the tuner, in seconds."""

    mode: str
    budget: float
    iters: int

    def mode_for(self, subject: Subject) -> str | None:
        small = subject.batch * subject.n <= SMALL and subject.device == "cuda"
        mode = ("reduce-overhead" if small else "default") if self.mode == "auto" else self.mode
        return None if mode == "default" else mode


Key = tuple[str, tuple[int, ...], str, str]


def key_of(record: Record) -> Key:
    """Without the mode, which --mode auto decides."""
    name = " ".join(part for part in record.variant.split() if not part.startswith("mode="))
    return record.backend, tuple(record.shape), name, record.dtype


Failed = Callable[[dict[str, Any]], None]


def run(
    subject: Subject,
    masks: list[str],
    ways: list[str],
    known: set[Key],
    options: Settings,
    failed: Failed,
) -> Iterator[Record]:
    """All ways at all masks; what is known already is left out. failed: told of those that do."""
    dtype = str(subject.dtype).removeprefix("torch.")
    for mask_name in masks:
        point = f"model={subject.name} mask={mask_name}"
        shape = (subject.batch, subject.n)
        missing = [way for way in ways if (way, shape, point, dtype) not in known]
        if not missing:
            continue
        mask = named(mask_name, subject.tokens)
        want = subject.want(mask)
        for way in missing:
            try:
                yield measured(subject, way, mask_name, mask, want, options)
            except (RuntimeError, ValueError, WrongResultError, torch.OutOfMemoryError) as error:
                line = next(iter(str(error).splitlines()), type(error).__name__)
                warnings.warn(f"{point} {shape}: no {way}: {line}", stacklevel=2)
                about = {"op": OP, "backend": way, "shape": [*shape], "dtype": dtype}
                failed(about | {"variant": point, "error": f"{type(error).__name__}: {line}"})
            finally:
                gc.collect()


def keep_failure(path: Path, device: str, line: dict[str, Any]) -> None:
    """One line for each way and point, of the last time."""
    place = ("backend", "shape", "dtype", "variant")
    lines = [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []
    kept = [old for old in lines if any(old[name] != line[name] for name in place)]
    kept.append(line | {"device": describe_device(device), "revision": revision()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in kept))


def main(
    models: Annotated[list[str] | None, typer.Option(help="default: all")] = None,
    shapes: Annotated[list[str] | None, typer.Option(help="as 16x2048")] = None,
    masks: Annotated[list[str] | None, typer.Option(help="default: all four")] = None,
    ways: Annotated[list[str] | None, typer.Option(help=", ".join(WAYS))] = None,
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16")] = "float16",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    mode: Annotated[str, typer.Option(help="of ours: auto, default, reduce-overhead")] = "auto",
    budget: Annotated[float, typer.Option(help="seconds of the tuner at each point")] = 60.0,
    iters: Annotated[int, typer.Option(help="calls of each of 5 series")] = 10,
    seconds: Annotated[float, typer.Option(help="begin nothing after this time")] = 1e9,
    results: Annotated[Path, typer.Option(help="folder for the result files")] = RESULTS,
) -> None:
    """Measure what fusion.jsonl lacks."""
    started = time.perf_counter()
    for name in ways or ():
        one_of("ways", name, WAYS)
    path = results / device_folder(device) / f"{OP}.jsonl"
    records = read_records(path) if path.is_file() else []
    failed = partial(keep_failure, path.parent / "failures" / path.name, device)
    options = Settings(mode, budget, iters)
    chosen = [
        way for way in ways or WAYS if way not in ("graphs", "flex-graphs") or device == "cuda"
    ]
    # Every way and mask is an entry of the same code; after 8 Dynamo would run it as it is.
    torch._dynamo.config.recompile_limit = 256
    with torch.no_grad():
        for shape in shapes or ("16x2048", "8x512", "1x128"):
            batch, n = (int(part) for part in shape.split("x"))
            for name in models or CONFIGS:
                if time.perf_counter() - started > seconds:
                    typer.echo(f"out of time before {name} {shape}")
                    return
                torch._dynamo.reset()
                subject = Subject(name, batch, n, getattr(torch, dtype), device)
                known = {key_of(record) for record in records}
                for record in run(subject, list(masks or MASKS), chosen, known, options, failed):
                    records.append(record)
                    write_records(records, path)  # at once: time on a GPU may be over
                    passed = time.perf_counter() - started
                    typer.echo(
                        f"{passed:4.0f} s  {record.variant} {record.shape} {record.backend}: "
                        f"{record.median_ms:.3f} ms, error {record.relative_error:.2g}, "
                        f"{record.facts['kernels']:.0f} kernels, "
                        f"compiled in {record.facts['compile_s']:.0f} s"
                    )
                    if passed > seconds:
                        typer.echo("out of time")
                        return
                CURRENT.dense = CURRENT.blocks = None
                del subject
                gc.collect()
                if device == "cuda":
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)

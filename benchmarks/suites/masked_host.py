"""What a call of gossamer.masked_attention with a prepared mask takes of the host's time.

From the call until it returns, while the GPU's queue is never full. Masks by turns, in several
series: a host that is busy with something else slows all calls of some milliseconds.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch.nn import functional as F

import gossamer
from benchmarks.suites.masked_attention import oracle
from benchmarks.suites.masked_cases import OTHERS, STOF, TOLERANCE, Point
from gossamer.attention import prepare
from gossamer.bench import Record, copy_bandwidth, write_records
from gossamer.bench.measure import Measurement, check_results
from gossamer.bench.record import device_folder
from gossamer.bench.suite import RESULTS
from gossamer.bench.timing import Timing
from gossamer.masks import named

OP = "masked_host"
LENGTH, SERIES, CALLS, QUEUED = 512, 9, 500, 50


def series(call: Callable[[], object]) -> list[float]:
    """Milliseconds of each of CALLS calls."""
    samples = []
    for i in range(CALLS):
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e3)
        if i % QUEUED == QUEUED - 1:
            torch.cuda.synchronize()
    return samples


def by_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, list[list[float]]]:
    """SERIES series of each; one before them is for caches to fill."""
    found: dict[str, list[list[float]]] = {name: [] for name in calls}
    for number in range(-1, SERIES):
        for name, call in calls.items():
            one = series(call)
            if number >= 0:
                found[name].append(one)
    return found


def record(point: Point, variant: str, found: list[list[float]], error: float) -> Record:
    """One line: of all calls, and the fastest and slowest series among the facts."""
    low, median, high = np.percentile(found, [10, 50, 90])
    medians = np.median(found, axis=1)
    timing = Timing(float(median), float(low), float(high), float(median), SERIES * CALLS)
    return Record.of(
        Measurement(timing, error, 0.0),
        op=OP,
        backend="host",
        shape=point.shape,
        dtype=point.dtype,
        variant=variant,
        bytes=point.bytes,
        flops=0,
        ceiling_gbps=copy_bandwidth("cuda"),
        device="cuda",
        facts={"fastest_series_ms": medians.min(), "slowest_series_ms": medians.max()},
    )


def main(
    results: Annotated[Path, typer.Option(help="folder for the result file")] = RESULTS,
) -> None:
    """All masks at batch 1 and 512 tokens, on a GPU; lines go to masked_host.jsonl."""
    point = Point("full", 1, LENGTH)
    calls: dict[str, Callable[[], object]] = {}
    errors: dict[str, float] = {}
    with torch.inference_mode():
        q, k, v = (torch.randn(point.shape, dtype=point.dtype, device="cuda") for _ in range(3))
        # Torch's own, to know the host by.
        calls["mask=full way=torch"] = partial(F.scaled_dot_product_attention, q, k, v)
        for name in (*STOF, *OTHERS):
            mask = prepare(named(name, LENGTH), LENGTH, LENGTH, "cuda")
            call = partial(gossamer.masked_attention, q, k, v, mask)
            error = check_results(call(), oracle(q, k, v, mask.mask), TOLERANCE)
            (plan,) = mask.plans.values()
            calls[f"mask={name} way={plan.candidate}"] = call
            errors[f"mask={name} way={plan.candidate}"] = error
        found = by_turns(calls)
    records = [record(point, name, found[name], errors.get(name, 0.0)) for name in calls]
    path = results / device_folder("cuda") / f"{OP}.jsonl"
    write_records(records, path)
    for r in records:
        typer.echo(f"{r.median_ms * 1e3:5.1f} us  {r.variant}  {r.facts}")
    typer.echo(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)

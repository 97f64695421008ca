"""What a call of gossamer.masked_attention with a prepared mask takes of the host's time.

From the call until it returns, while the GPU's queue is never full. Masks by turns, in several
series: a host that is busy with something else slows all calls of some milliseconds.
"""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor

import gossamer
from benchmarks.masked_attention import TOLERANCE, oracle
from benchmarks.masked_plans import OTHERS, STOF, Point
from gossamer.attention import PreparedMask, prepare
from gossamer.bench import Record, copy_bandwidth, write_records
from gossamer.bench.measure import Measurement, check_results
from gossamer.bench.record import device_folder
from gossamer.bench.suite import RESULTS
from gossamer.bench.timing import Timing

OP = "masked_host"
LENGTH, SERIES, CALLS, QUEUED = 512, 9, 500, 50


def series(inputs: tuple[Tensor, ...], mask: PreparedMask) -> list[float]:
    """Milliseconds of each of CALLS calls."""
    q, k, v = inputs
    samples = []
    for i in range(CALLS):
        start = time.perf_counter()
        gossamer.masked_attention(q, k, v, mask)
        samples.append((time.perf_counter() - start) * 1e3)
        if i % QUEUED == QUEUED - 1:
            torch.cuda.synchronize()
    return samples


def record(point: Point, mask: PreparedMask, found: list[list[float]], error: float) -> Record:
    """One line: of all calls, and the fastest and slowest series among the facts."""
    low, median, high = np.percentile(found, [10, 50, 90])
    medians = np.median(found, axis=1)
    timing = Timing(float(median), float(low), float(high), float(median), SERIES * CALLS)
    (plan,) = mask.plans.values()
    return Record.of(
        Measurement(timing, error, 0.0),
        op=OP,
        backend="host",
        shape=point.shape,
        dtype=point.dtype,
        variant=f"mask={point.mask} way={plan.way}",
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
    points = [Point(mask, 1, LENGTH) for mask in (*STOF, *OTHERS)]
    with torch.inference_mode():
        shape, dtype = points[0].shape, points[0].dtype
        q, k, v = (torch.randn(shape, dtype=dtype, device="cuda") for _ in range(3))
        masks = {p: prepare(p.build_mask(), LENGTH, LENGTH, "cuda") for p in points}
        errors = {
            p: check_results(
                gossamer.masked_attention(q, k, v, mask), oracle(q, k, v, mask.mask), TOLERANCE
            )
            for p, mask in masks.items()
        }
        found: dict[Point, list[list[float]]] = {p: [] for p in points}
        for number in range(-1, SERIES):  # the first one is for caches to fill
            for point in points:
                one = series((q, k, v), masks[point])
                if number >= 0:
                    found[point].append(one)
    records = [record(p, masks[p], found[p], errors[p]) for p in points]
    path = results / device_folder("cuda") / f"{OP}.jsonl"
    write_records(records, path)
    for r in records:
        typer.echo(f"{r.median_ms * 1e3:5.1f} us  {r.variant}  {r.facts}")
    typer.echo(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)

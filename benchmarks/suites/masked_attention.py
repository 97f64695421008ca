"""masked_attention by all its candidates, against FlexAttention at its best and torch's SDPA.

Every line of the results is one candidate at one point; `candidate=` in its variant says that it is
ours. All timed calls of a point get the same inputs, and what they return is compared with
attention in float64 under the dense mask.
"""

import itertools
import multiprocessing
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.peers.masked import Attend, compile_flex, peers_of
from benchmarks.suites.masked_cases import OP, POINTS, SUITE, TOLERANCE, Point, candidates
from gossamer.bench import (
    Record,
    WrongResultError,
    copy_bandwidth,
    measure,
    read_records,
    write_records,
)
from gossamer.bench.record import device_folder
from gossamer.bench.suite import RESULTS, PeerUnavailableError
from gossamer.cli.options import one_line_errors
from gossamer.masks import Mask

__all__ = ["SUITE"]  # of the op, as in every file here

Name = tuple[str, tuple[int, ...], str]  # backend, shape, and mask with candidate: one line
ORACLE_BYTES = 4 << 30  # of float64 scores at a time


def oracle(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention in float64 under the dense mask, a few rows at a time."""
    n, device = q.shape[2], q.device
    mask = mask.to(device)
    index = torch.arange(n, device=device, dtype=torch.int32)
    heads = torch.arange(q.shape[1], device=device, dtype=torch.int32)[:, None, None]
    element = torch.zeros((), device=device, dtype=torch.int32)  # masks are the same for all
    rows = max(1, ORACLE_BYTES // (8 * q.shape[1] * n))
    out = torch.empty(q.shape, dtype=torch.float64, device=device)
    for b in range(q.shape[0]):
        keys, values = k[b].double().transpose(1, 2) * q.shape[3] ** -0.5, v[b].double()
        for start in range(0, n, rows):
            part = slice(start, start + rows)
            scores = q[b, :, part].double() @ keys
            seen = mask.predicate(element, heads, index[part, None], index)
            scores.masked_fill_(~seen, -torch.inf)
            out[b, :, part] = scores.softmax(-1) @ values
    return out


@dataclass
class Inputs:
    """Random inputs of a point: the same ones, in the same order, for everything that is timed."""

    point: Point
    device: str
    mask: Mask
    _sets: list[tuple[Tensor, ...]] = field(default_factory=list)
    _answers: dict[int, Tensor] = field(default_factory=dict)

    def maker(self) -> Callable[[], tuple[Tensor, ...]]:
        made = 0

        def make() -> tuple[Tensor, ...]:
            nonlocal made
            if made == len(self._sets):
                shape, dtype = self.point.shape, self.point.dtype
                self._sets.append(
                    tuple(torch.randn(shape, dtype=dtype, device=self.device) for _ in range(3))
                )
            made += 1
            return self._sets[made - 1]

        return make

    def answer(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if id(q) not in self._answers:
            self._answers[id(q)] = oracle(q, k, v, self.mask)
        return self._answers[id(q)]


def run(
    point: Point, device: str, iters: int, only: str | None, known: Collection[Name]
) -> Iterator[Record]:
    """Peers, then our candidates. only: those of this backend. known: what not to time again."""
    inputs = Inputs(point, device, point.build_mask())
    ours: Iterable[tuple[str, str, Callable[[], Attend], dict[str, float]]] = (
        (c.backend, f"candidate={c.name}", lambda c=c: c.call, c.facts)  # type: ignore[misc]
        for c in candidates(inputs.mask, point.shape, device)
        if only in (None, c.backend)
    )
    others = ((p.name, "", p.prepare, p.facts) for p in peers_of(point, device))
    for backend, variant, prepare, facts in itertools.chain(others, ours):
        if (backend, point.shape, full_variant(point, variant)) in known:
            continue
        try:
            record = _timed(point, inputs, backend, variant, prepare, facts, iters)
        except (PeerUnavailableError, WrongResultError, RuntimeError, ValueError) as error:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            warnings.warn(
                f"{point.mask} {point.shape}: no {backend} {variant}: {line}", stacklevel=2
            )
            continue
        yield record


def _timed(
    point: Point,
    inputs: Inputs,
    backend: str,
    variant: str,
    prepare: Callable[[], Attend],
    facts: dict[str, float],
    iters: int,
) -> Record:
    attend = prepare()
    found = measure(
        attend, inputs.maker(), inputs.answer, warmup=5, iters=iters, tolerance=TOLERANCE
    )
    density = facts.get("density", 0.0)
    return Record.of(
        found,
        op=OP,
        backend=backend,
        shape=point.shape,
        dtype=point.dtype,
        variant=full_variant(point, variant),
        bytes=point.bytes,
        flops=point.flops(density),
        ceiling_gbps=copy_bandwidth(inputs.device),
        device=inputs.device,
        facts=facts,
    )


def full_variant(point: Point, variant: str) -> str:
    return f"mask={point.mask} {variant}".strip()


def name_of(record: Record) -> Name:
    return record.backend, tuple(record.shape), record.variant


def precompile(points: list[Point], workers: int) -> None:
    """FlexAttention compiles for each mask and shape: all at once, before anything is timed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        done = sum(pool.map(compile_flex, points))
    typer.echo(f"compiled FlexAttention {done} times")


def main(
    points: Annotated[str, typer.Option("--points", "--plan", help=", ".join(POINTS))] = "headline",
    device: Annotated[str, typer.Option(help="cuda")] = "cuda",
    iters: Annotated[int, typer.Option(help="timed calls of each")] = 50,
    workers: Annotated[int, typer.Option(help="that compile FlexAttention; 0: it is done")] = 16,
    only: Annotated[list[str] | None, typer.Option(help="masks; repeatable, default: all")] = None,
    peers: Annotated[bool, typer.Option(help="time those as well")] = True,
    backend: Annotated[str | None, typer.Option(help="cuda or triton; default: both")] = None,
    seconds: Annotated[float, typer.Option(help="stop after this time")] = 1e9,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep the file's lines, time what it lacks")
    ] = False,
    results: Annotated[Path | None, typer.Option(help=f"folder; default: {RESULTS}")] = None,
) -> None:
    """Measure; lines go to masked_attention.jsonl, or masked_attention_<points>.jsonl."""
    started = time.perf_counter()
    with one_line_errors():
        if points not in POINTS:
            raise ValueError(f"points is {points!r}; must be one of {', '.join(POINTS)}")
        chosen = [p for p in POINTS[points]() if not only or p.mask in only]
        if not peers:
            chosen = [replace(p, flex=False, sdpa=False) for p in chosen]
        if (with_flex := [p for p in chosen if p.flex]) and workers:
            precompile(with_flex, workers)
        file = f"{OP}.jsonl" if points == "headline" else f"{OP}_{points}.jsonl"
        path = (results or RESULTS) / device_folder(device) / file
        records: list[Record] = read_records(path) if resume and path.is_file() else []
        known = {name_of(record) for record in records}
        with torch.inference_mode():
            for point in chosen:
                if time.perf_counter() - started > seconds:
                    typer.echo(f"out of time at {point}")
                    break
                found = list(run(point, device, iters, backend, known))
                records += found
                write_records(records, path)  # at once: time on a GPU may be over
                _show(point, found, time.perf_counter() - started)
        typer.echo(f"written to {path}")


def _show(point: Point, records: list[Record], passed: float) -> None:
    """The fastest of ours and of the peers."""
    ours = [r for r in records if "candidate=" in r.variant]
    flex = [r for r in records if r.backend.startswith("flex")]
    others = [r for r in records if r not in ours and r not in flex]
    parts = []
    for found in (ours, flex, others):
        best = min(found, key=lambda r: r.median_ms, default=None)
        if best is not None:
            name = best.variant.split("candidate=")[-1] if best in ours else best.backend
            parts.append(f"{name} {best.median_ms * 1e3:.1f} us")
    typer.echo(f"{passed:4.0f} s  {point.mask} {point.shape}: {'; '.join(parts)}")


if __name__ == "__main__":
    typer.run(main)

"""Timing every candidate at a grid of masks and shapes, for coefficients of this device."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.attention.candidates import Arguments
from gossamer.attention.coefficient_files import Coefficients, places_of
from gossamer.attention.fitting import Regret, Sample, fit, held_out
from gossamer.attention.plans import plan_of
from gossamer.attention.prepared import prepare
from gossamer.attention.selector import candidates
from gossamer.bench.record import describe_device, versions
from gossamer.bench.timing import benchmark_kernel
from gossamer.masks import named

MASKS = (
    *("stof-sliding", "stof-dilated", "stof-longformer", "stof-bigbird"),
    *("full", "causal", "bigbird", "strided", "streaming", "documents", "prefix-lm"),
)
HEADS = 12


@dataclass(frozen=True)
class Point:
    """A mask over [batch, heads, n, head_dim]."""

    mask: str
    batch: int
    heads: int
    n: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.mask} {self.batch}x{self.heads}x{self.n}x{self.head_dim}"


def grid(device: torch.device, quick: bool = False) -> list[Point]:
    """In an order that can be cut short. A CPU gets shapes that it computes in milliseconds."""
    if device.type == "cuda":
        lengths = (128, 512, 1024, 2048, 4096, 16384)
        sizes = [(b, HEADS, n) for b in (1, 8, 16) for n in lengths if b * n <= 65536]
        head_dims: tuple[int, ...] = (64, 128)
    else:
        sizes = [(b, 4, n) for b in (1, 2) for n in (64, 192, 512, 1024)]
        head_dims = (64, 128)
    points = [Point(mask, *size, d) for mask in MASKS for size in sizes for d in head_dims]
    random.Random(0).shuffle(points)
    return points[: len(points) // 6] if quick else points


def samples(point: Point, device: torch.device, dtype: torch.dtype) -> Iterator[Sample]:
    """Every candidate at this point, timed."""
    mask = prepare(named(point.mask, point.n), point.n, point.n, device)
    shape = (point.batch, point.heads, point.n, point.head_dim)
    q, k, v = (torch.randn(shape, dtype=dtype, device=device) for _ in range(3))
    args = Arguments(q, k, v, None, point.head_dim**-0.5, 0.0, False)
    for candidate in candidates(mask, args):
        plan = plan_of(mask, candidate, args)
        try:
            plan.run(q, k, v, None, args.scale, 0.0)
        except (RuntimeError, NotImplementedError):
            if candidate.kernel == "sdpa":
                continue  # not in this build of torch
            raise
        took = _microseconds(lambda plan=plan: plan.run(q, k, v, None, args.scale, 0.0), q)  # type: ignore[misc]
        yield Sample(str(point), candidate, args.call, mask.facts(candidate.facts_tile), took)


def _microseconds(call: Callable[[], object], q: Tensor) -> float:
    """As many calls as take some milliseconds: the median; on a CPU, which others use, the 10th
    percentile.
    """
    on_cpu, device = q.device.type == "cpu", str(q.device)
    first = benchmark_kernel(call, warmup=1, iters=3, device=device)
    iters = max(5, min(50, int(20 / max(first.low_ms, 1e-3))))
    timing = benchmark_kernel(call, warmup=0, iters=iters, device=device)
    return 1e3 * (timing.low_ms if on_cpu else timing.median_ms)


def tune(
    points: list[Point],
    device: torch.device,
    dtype: torch.dtype,
    show: Callable[[Point, list[Sample]], None] = lambda point, found: None,
) -> tuple[Coefficients, Regret]:
    """Coefficients of all points, and the regret at points that were left out of a fit."""
    found: list[Sample] = []
    with torch.inference_mode():
        for point in points:
            new = list(samples(point, device, dtype))
            found += new
            show(point, new)
    places = places_of(device)
    model = fit(found, places)
    if not model.groups:
        raise ValueError(f"{len(points)} points are too few to fit anything; take more")
    coefficients = Coefficients(model, describe_device(str(device)), True, versions())
    return coefficients, held_out(found, places)

"""How well the selector chooses: regret at points that its coefficients were not fitted on.

Reads the lines of `python -m benchmarks.suites.masked_attention` and judges every point by
coefficients of other points, or of other masks; `--output` writes coefficients that are fitted on
all of them.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.suites.masked_cases import OP, mask_named
from gossamer.attention.candidates import Call, Candidate
from gossamer.attention.coefficient_files import Coefficients, write
from gossamer.attention.cost import TileFacts
from gossamer.attention.fitting import Sample, by_mask, fit, held_out
from gossamer.bench import Record, read_records
from gossamer.bench.suite import RESULTS
from gossamer.cli.options import one_line_errors
from gossamer.masks import TileMap

H200 = RESULTS / "nvidia-h200"
PLACES = 132  # SMs of an H200
SDPA = {"sdpa_flash": "sdpa flash", "sdpa_cudnn": "sdpa cudnn", "sdpa_mask": "sdpa mask"}


@functools.cache
def facts_of(mask: str, n: int, heads: int, tile: tuple[int, int]) -> TileFacts:
    return TileFacts.of(TileMap.build(mask_named(mask, n, heads), n, n, tile))


def candidate_of(record: Record) -> Candidate | None:
    """None for what is no candidate, as FlexAttention."""
    _, found, name = record.variant.partition("candidate=")
    name = name if found else SDPA.get(record.backend, "")
    return Candidate.parse(name) if name else None


def samples_of(records: Iterable[Record]) -> list[Sample]:
    """The candidates among these lines."""
    samples = []
    for record in records:
        candidate = candidate_of(record) if record.op == OP else None
        if candidate is None:
            continue
        mask = record.variant.split()[0].removeprefix("mask=")
        batch, heads, n, head_dim = record.shape
        size = int(re.sub(r"\D", "", record.dtype)) // 8
        call = Call(batch, heads, heads, n, n, head_dim, size)
        facts = facts_of(mask, n, heads, candidate.facts_tile)
        point = f"{mask} {batch}x{heads}x{n}x{head_dim} {record.dtype}"
        samples.append(Sample(point, candidate, call, facts, record.median_ms * 1e3))
    return samples


def main(
    files: Annotated[
        list[Path] | None, typer.Argument(help=f"lines; default: {OP}*.jsonl in {H200}")
    ] = None,
    places: Annotated[int, typer.Option(help="SMs of the GPU, threads of the CPU")] = PLACES,
    worst: Annotated[int, typer.Option(help="points to show")] = 10,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="write coefficients of all points")
    ] = None,
) -> None:
    """Median and worst regret at points that were left out of the fit."""
    with one_line_errors():
        paths = files or sorted(H200.glob(f"{OP}*.jsonl"))
        records = [record for path in paths for record in read_records(path)]
        samples = samples_of(records)
        if not samples:
            raise ValueError(f"no candidates in {', '.join(map(str, paths)) or H200}")
        for name, fold in (("points by chance", None), ("masks", by_mask)):
            regret = held_out(samples, places, fold)
            typer.echo(f"{name} left out: {regret}")
            for point, share in sorted(regret.shares.items(), key=lambda x: -x[1])[:worst]:
                typer.echo(f"  {share:6.1%}  {point}")
        if output:
            first = records[0]
            model = fit(samples, places)
            write(Coefficients(model, first.device, True, first.versions), output)
            typer.echo(f"wrote {output}")


if __name__ == "__main__":
    typer.run(main)

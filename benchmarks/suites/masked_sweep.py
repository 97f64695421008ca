"""masked_attention over masks, batches and lengths that are given, on any device, against SDPA.

    python -m benchmarks.suites.masked_sweep --mask causal --mask stof-bigbird --tokens 128

The driver of all candidates and of FlexAttention is benchmarks.suites.masked_attention.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.suites.masked_cases import OP, SUITE, TOLERANCE, case_of
from gossamer.bench import write_records
from gossamer.bench.record import device_folder
from gossamer.bench.suite import RESULTS, Case, Suite
from gossamer.cli.options import one_line_errors
from gossamer.masks import named
from gossamer.ops.checks import dtype_name

__all__ = ["SUITE"]  # of the op, as in every file here


def main(
    mask: Annotated[list[str], typer.Option(help="masks; repeatable")],
    tokens: Annotated[list[int], typer.Option(help="lengths; repeatable")],
    batch: Annotated[list[int] | None, typer.Option(help="batches; repeatable")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16")] = "float32",
    seed: Annotated[int, typer.Option(help="of the inputs")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="few repetitions")] = False,
    results: Annotated[Path | None, typer.Option(help=f"folder; default: {RESULTS}")] = None,
) -> None:
    """Measure; lines go to masked_attention.jsonl."""

    def cases(device: str, quick: bool) -> Iterator[Case]:
        for name in mask:
            for size in batch or [1]:
                for n in tokens:
                    yield case_of(device, name, size, n, peer="sdpa_mask", dtypes=(kind,))

    with one_line_errors():
        known = {dtype_name(each): each for each in TOLERANCE}
        if dtype not in known:
            raise ValueError(f"dtype is {dtype!r}; must be {', '.join(known)}")
        kind = known[dtype]
        for name in mask:
            named(name, min(tokens))
        torch.manual_seed(seed)
        suite = Suite(OP, cases, oracle=SUITE.oracle, tolerance=TOLERANCE)
        found = suite.run(device, quick, lambda r: typer.echo(f"{r.variant} {r.shape} {r.backend}"))
        write_records(found, (results or RESULTS) / device_folder(device) / f"{OP}.jsonl")


if __name__ == "__main__":
    typer.run(main)

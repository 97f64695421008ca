"""`gossamer tune`: measure this device, so that the fastest kernels and plans are chosen."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import options as o
from gossamer.cli.tune_model import cached, model, tuned_device, tuned_dtype

tune = typer.Typer(
    name="tune", no_args_is_help=True, help="Tune kernels and fusion plans for this device."
)


@tune.command()
def attention(
    device: o.Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="Data type: float32, float16, bfloat16; auto: float16 on a GPU")
    ] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Measure a sixth of the points")] = False,
    points: Annotated[int | None, typer.Option(help="Maximum number of points")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write; default: in the cache directory"
        ),
    ] = None,
) -> None:
    """Time the kernels of masked attention on a grid of masks and shapes; fit the cost model."""
    from gossamer.attention import coefficient_files, tuning

    with o.one_line_errors():
        where = tuned_device(device)
        if points is not None:
            o.at_least("points", points, 1)
        if output is not None and output.is_dir():
            raise ValueError(f"{output}: is a directory; --output must be a file")
        path = output or coefficient_files.user_file(where)
        chosen = tuning.grid(where, quick)[:points]
        found, regret = tuning.tune(chosen, where, tuned_dtype(dtype, where), _show)
        coefficient_files.write(found, path)
        typer.echo(f"left out of the fit: {regret}")
        typer.echo(f"wrote {path}")


tune.command("model")(model)
tune.command("list")(cached)


def _show(point: Any, samples: Any) -> None:
    fastest = min(samples, key=lambda sample: sample.microseconds)
    typer.echo(
        f"{point!s:36} {fastest.candidate!s:24} {fastest.microseconds:10.1f} us of "
        f"{len(samples)} candidates"
    )

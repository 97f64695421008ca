"""`gossamer tune`: measure this device, so that the fastest kernel is chosen."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import options as o

tune = typer.Typer(name="tune", no_args_is_help=True, help="Tune kernel selection for this device.")


@tune.callback()
def _commands() -> None:
    """Keeps `attention` a subcommand while it is the only one."""


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
        where = _device(device)
        if points is not None:
            o.at_least("points", points, 1)
        if output is not None and output.is_dir():
            raise ValueError(f"{output}: is a directory; --output must be a file")
        path = output or coefficient_files.user_file(where)
        chosen = tuning.grid(where, quick)[:points]
        found, regret = tuning.tune(chosen, where, _dtype(dtype, where), _show)
        coefficient_files.write(found, path)
        typer.echo(f"left out of the fit: {regret}")
        typer.echo(f"wrote {path}")


def _show(point: Any, samples: Any) -> None:
    fastest = min(samples, key=lambda sample: sample.microseconds)
    typer.echo(
        f"{point!s:36} {fastest.candidate!s:24} {fastest.microseconds:10.1f} us of "
        f"{len(samples)} candidates"
    )


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise ValueError(f"--device is {name!r}; must be cpu, cuda, cuda:1, ...: {line}") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device is {name!r}; must be cpu, cuda, cuda:1, ...")
    return found


def _dtype(name: str, device: Any) -> Any:
    import torch

    if name == "auto":
        name = "float16" if device.type == "cuda" else "float32"
    if name not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"--dtype is {name!r}; must be float16, bfloat16, float32 or auto")
    return getattr(torch, name)

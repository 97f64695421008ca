"""`gossamer quantize`: write a checkpoint in 8 or 4 bits."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from gossamer.cli import options as o
from gossamer.models.directory import DirectorySource
from gossamer.models.opening import open_model
from gossamer.models.quantizing import Quantizing, count_matrices, quantize_checkpoint


def quantize(
    model: Annotated[str, typer.Argument(help="Hugging Face directory", metavar="MODEL")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Model directory to write")
    ],
    weights: Annotated[
        str, typer.Option("--weights", help="What matrices of layers become: int4, int8 or fp8")
    ] = "int4",
    group: Annotated[
        int | None,
        typer.Option("--group", help="Weights of a row that share a scale of int4; default: 32"),
    ] = None,
) -> None:
    """Quantize a model and write it as a compressed-tensors checkpoint."""
    with o.one_line_errors():
        if group is not None and weights != "int4":
            raise ValueError(
                f"group is {group}, and {weights} has a scale for each row; only int4 has groups"
            )
        quantizing = Quantizing(weights) if group is None else Quantizing(weights, group)
        source = open_model(model)
        if not isinstance(source, DirectorySource):
            raise ValueError(f"{model}: must be a Hugging Face directory with safetensors")
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("quantizing", total=count_matrices(source))
            total = quantize_checkpoint(
                source, output, quantizing, progress=lambda: progress.advance(task)
            )
    typer.echo(f"wrote {output}: {total / 1e6:,.1f} MB")

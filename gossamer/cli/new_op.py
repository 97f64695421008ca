"""`gossamer new-op NAME`: the files of a new op, ready to be changed."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli.options import one_line_errors
from gossamer.kit import scaffold


def new_op(
    name: Annotated[str, typer.Argument(help="lower case, as in fused_add_gelu")],
    family: Annotated[
        str, typer.Option("--family", help="folder of csrc for its C++")
    ] = "elementwise",
    root: Annotated[
        Path, typer.Option("--root", metavar="FOLDER", help="the checkout of Gossamer")
    ] = Path(),
) -> None:
    """Write a working op (x + scale * y) under a new name: op, kernels, test, benchmark, page.

    Exit code 2, and nothing written, where the name is bad or a file would be overwritten.
    """
    with one_line_errors():
        made = scaffold.new_op(name, family, root)
        made.apply()
    for path in made.created:
        typer.echo(f"wrote  {path}")
    for path in made.edited:
        typer.echo(f"edited {path}")
    typer.echo(f"""
Next: change gossamer/ops/{name}.py until it means what you want, then the kernels and the test.
  make test ARGS="tests/ops -k {name}"    builds and tests
  gossamer check-op {name}                right, fast, small, documented?
The guide is docs/custom-kernels.md.""")

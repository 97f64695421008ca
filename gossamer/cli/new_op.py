"""`gossamer new-op NAME`: the files of a new op, ready to be changed."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli.options import one_line_errors
from gossamer.kit import scaffold


def new_op(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name in snake case, e.g. fused_add_gelu")
    ],
    family: Annotated[
        str, typer.Option("--family", help="Directory of csrc for its C++")
    ] = "elementwise",
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Checkout of Gossamer")
    ] = Path(),
) -> None:
    """Create a new op from a working template: op, kernels, test, benchmark and docs page.

    Nothing is written, with exit code 2, if the name is invalid or a file exists already.
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
  gossamer check-op {name}                correct, fast, small, documented?
The guide is docs/custom-kernels.md.""")

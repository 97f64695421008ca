"""`gossamer masks`: which masks there are, and what they look like."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import options as o

masks = typer.Typer(name="masks", no_args_is_help=True, help="List and draw attention masks.")

Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Draw to a .png, .svg or .pdf file"),
]


@masks.command("list")
def list_masks() -> None:
    """List the masks and their parameters."""
    from gossamer.masks.presets import PRESETS, parameters_of, summary_of

    for name in PRESETS:
        parameters = " ".join(f"--{key} {value}" for key, value in parameters_of(name).items())
        typer.echo(f"{name:16} {summary_of(name)}")
        if parameters:
            typer.echo(f"{'':16} {parameters}")


@masks.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Mask, see `gossamer masks list`")],
    n: Annotated[int, typer.Option("--n", help="Number of queries and keys")] = 512,
    output: Output = None,
    tile: Annotated[
        str, typer.Option(metavar="QxK", help="Tile size: 16..128 x 32..128")
    ] = "64x64",
) -> None:
    """Show a mask's density, tiles and drawing. Set its parameters by name, e.g. --before 128."""
    from gossamer import plotting
    from gossamer.masks import TileMap, named
    from gossamer.masks.drawing import draw, summary, text

    with o.one_line_errors():
        if output:
            plotting.check()
        mask = named(name, n, **_parameters(context.args))
        tiles = TileMap.build(mask, n, n, _tile(tile))
        typer.echo(f"{mask}, {n} queries and keys")
        typer.echo(summary(tiles))
        if output:
            draw(mask, n, n, output, tile=_tile(tile))
            typer.echo(f"wrote {output}")
        else:
            typer.echo(text(mask, n, n))


def _tile(value: str) -> tuple[int, int]:
    parts = value.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"--tile is {value!r}; must be two numbers, as in 64x64")
    return int(parts[0]), int(parts[1])


def _parameters(arguments: list[str]) -> dict[str, Any]:
    """From `--before 128 --tokens=0-31,64` to {"before": 128, "tokens": [range(0, 32), 64]}."""
    found: dict[str, Any] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            raise ValueError(f"{argument!r} is neither an option nor its value")
        if not equals:
            value = next(rest, "")
        found[name.removeprefix("--").replace("-", "_")] = _value(name, value)
    return found


def _value(name: str, value: str) -> Any:
    """An integer, or indices and ranges for more than one."""
    try:
        if "," not in value and "-" not in value[1:]:
            return int(value)
        parts = [[int(end) for end in part.split("-")] for part in value.split(",")]
    except ValueError:
        parts = [[]]
    if not all(1 <= len(part) <= 2 for part in parts):
        raise ValueError(f"{name} is {value!r}; must be an integer, or as in 0-31,64")
    return [part[0] if len(part) == 1 else range(part[0], part[1] + 1) for part in parts]

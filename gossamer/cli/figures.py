"""`gossamer figures`: plots of what was measured, next to what others published."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.cli import options as o

Records = Annotated[
    Path | None,
    typer.Option(
        "--records", metavar="DIR", help="Folder with results/ and the rest; default: benchmarks/"
    ),
]
DeviceFolder = Annotated[
    str, typer.Option("--device", help="Folder of results to draw; default: the first GPU")
]


def figures(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Figures; default: all")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR")] = Path("build/figures"),
    from_records: Annotated[
        bool, typer.Option("--from-records", help="Draw what was measured before (the default)")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="SUITE", help="Measure a suite on this machine, then draw"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop measuring after so many minutes; the same command goes on"),
    ] = None,
    records: Records = None,
    device: DeviceFolder = "",
    kind: Annotated[str, typer.Option("--format", help="svg, png or pdf")] = "svg",
) -> None:
    """Draw figures from records, or measure a suite first. Needs a checkout of Gossamer.

    Exit code 1 if a figure could not be drawn from malformed records, 2 for bad arguments.
    """
    from gossamer.kit.checkout import require

    with o.one_line_errors():
        if from_records and run is not None:
            raise ValueError("--from-records excludes --run")
        if minutes is not None and run is None:
            raise ValueError("--minutes needs --run")
        command = require("benchmarks.figures.command")
        source = require("benchmarks.records")
        chosen = command.named(names or [])
        if run is not None:
            records = require("benchmarks.runs.command").run(run, output, minutes)
        found = source.Benchmarks.of(records or source.FOLDER, device)
        outcomes = command.draw(found, output, chosen, kind, _tell)
    drawn = [outcome for outcome in outcomes if not outcome.problem]
    typer.echo(f"{len(drawn)} of {len(outcomes)} figures of {found.device} in {output}")
    if any(outcome.problem and not outcome.missing for outcome in outcomes):
        raise typer.Exit(1)


def _tell(outcome: Any) -> None:
    if outcome.problem:
        typer.echo(f"{outcome.name}: not drawn: {outcome.problem}", err=True)
    else:
        typer.echo(f"{outcome.name}: {outcome.values} values, {outcome.seconds:.1f} s")

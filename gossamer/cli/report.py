"""`gossamer report`: one page of everything that was measured, or what changed between two runs."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli import options as o
from gossamer.cli.figures import DeviceFolder, Records


def report(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR")] = Path("build/report"),
    records: Records = None,
    device: DeviceFolder = "",
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BEFORE AFTER", help="Two folders of records: what got worse"),
    ] = None,
) -> None:
    """Make an HTML page and a Markdown summary of all records, or compare two folders of records.

    Needs a checkout of Gossamer. With --compare, exit code 1 if something got slower or less
    accurate beyond noise. Exit code 2 for bad arguments.
    """
    from gossamer.kit.checkout import require

    with o.one_line_errors():
        if compare is not None:
            regressions = require("benchmarks.reports.regressions")
            found, compared = regressions.changes(*compare)
        else:
            source = require("benchmarks.records")
            page = require("benchmarks.reports.report")
            benchmarks = source.Benchmarks.of(records or source.FOLDER, device)
            files, problems = page.write(benchmarks, output)
    if compare is not None:
        typer.echo(regressions.regressions_table(found, compared))
        raise typer.Exit(1 if any(change.worse for change in found) else 0)
    for problem in problems:
        typer.echo(f"left out: {problem}", err=True)
    for file in files:
        typer.echo(f"wrote {file}")

"""Which committed records are older than the sources that they describe.

    python -m benchmarks.reports.older --write

keeps the list in benchmarks/older.json, as pages are made where git has no history too.
"""

import json
from typing import Annotated

import typer

from benchmarks.records import FOLDER, command_of
from benchmarks.reports.markdown import table
from benchmarks.sources import history, older

FILE = FOLDER / "older.json"
COLUMNS = ["records", "measured at", "changed since", "measure again"]


def kept() -> dict[tuple[str, str], str]:
    """(file, revision) and what has changed, as it was written last."""
    lines = json.loads(FILE.read_text())
    return {(line["file"], line["revision"]): line["changed"] for line in lines}


def older_table() -> str:
    """Every record file that is older than what it describes."""
    rows = [
        [_link(file), f"`{revision}`", changed, f"`{command_of(_stem(file))}`"]
        for (file, revision), changed in kept().items()
    ]
    return table(COLUMNS, rows) if rows else "None."


def _stem(file: str) -> str:
    return file.rsplit("/", 1)[-1].removesuffix(".jsonl")


def _link(file: str) -> str:
    return f"[{file.removeprefix('benchmarks/').removeprefix('results/')}](../{file})"


def main(
    write: Annotated[bool, typer.Option("--write", help="keep the list")] = False,
) -> None:
    """Print them. Exit code 1 without git's history."""
    if not history():
        typer.echo("there is no history here to compare with", err=True)
        raise typer.Exit(1)
    found = older()
    for (file, revision), changed in found.items():
        typer.echo(f"{file} at {revision}: {changed}")
    if write:
        lines = [{"file": f, "revision": r, "changed": c} for (f, r), c in found.items()]
        FILE.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

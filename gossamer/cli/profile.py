"""`gossamer profile -- COMMAND`: a Python program under torch's profiler."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli.options import one_line_errors
from gossamer.profiling.command import parse


def profile(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="script.py, python -m MODULE, gossamer ..."),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="where the files go")
    ] = Path(),
    all_threads: Annotated[
        bool, typer.Option("--all-threads", help="CPU ops of all threads, but no memory")
    ] = False,
) -> None:
    """Run a Python program; write profile_trace.json, profile_report.txt; print time by kernel.

    Exits with the program's exit code; 2 for a command that is not Python.
    """
    with one_line_errors():
        wanted = parse(command or [])
        if output.exists() and not output.is_dir():
            raise ValueError(f"--output is {output}, a file; must be a folder")
    child = [sys.executable, "-m", "gossamer.profiling.command", str(output.absolute())]
    child += ["all" if all_threads else "main", wanted.kind, wanted.target, *wanted.arguments]
    code = subprocess.run(child, check=False).returncode
    # As a shell has it for a program that a signal ended.
    raise typer.Exit(code if code >= 0 else 128 - code)

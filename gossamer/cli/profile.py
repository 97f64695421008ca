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
        typer.Argument(
            metavar="-- COMMAND...", help="Command: script.py, python -m MODULE or gossamer ..."
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Directory for the files")
    ] = Path(),
    all_threads: Annotated[
        bool, typer.Option("--all-threads", help="Record CPU ops of all threads, without memory")
    ] = False,
) -> None:
    """Profile a Python program: write a trace and a report, print the time by kernel.

    Exits with the program's exit code, or 2 if the command is not Python.
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

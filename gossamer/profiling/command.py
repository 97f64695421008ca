"""What `gossamer profile -- COMMAND` may run: Python programs, in a process of their own.

`python -m gossamer.profiling.command FOLDER THREADS KIND TARGET ARGUMENTS...` is that process:
nothing of the program is imported or changed before it runs, and what it ends with (an exit code,
an exception) is what the process ends with.
"""

import re
import runpy
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gossamer.profiling.session import profile

PYTHON = re.compile(r"(python|pypy)[0-9.]*")
GOSSAMER = "gossamer.cli.main"


@dataclass(frozen=True)
class PythonCommand:
    """A program for Python's runpy: kind "module", "script" or "code", its target, arguments."""

    kind: str
    target: str
    arguments: tuple[str, ...] = ()


def parse(arguments: Sequence[str]) -> PythonCommand:
    """What these arguments would run in a shell. ValueError for what is not Python, or nothing."""
    if not arguments:
        raise ValueError("nothing to profile; give a command after --")
    first, rest = arguments[0], tuple(arguments[1:])
    if PYTHON.fullmatch(Path(first).name):
        return _interpreter(rest)
    if first.endswith(".py"):
        return _script(first, rest)
    if first == "gossamer":  # also where no such program is installed
        return PythonCommand("module", GOSSAMER, rest)
    found = shutil.which(first)
    if found is None:
        raise ValueError(f"{first} is not a program here; must be a Python program")
    if not _starts_python(Path(found)):
        raise ValueError(f"{first} is not a Python program; {_instead()}")
    return PythonCommand("script", found, rest)


def _interpreter(arguments: tuple[str, ...]) -> PythonCommand:
    """`python` with `-m MODULE`, `-c CODE` or a script; other options of it are refused."""
    if not arguments:
        raise ValueError("python without a program; must have a script, -m MODULE or -c CODE")
    first, rest = arguments[0], arguments[1:]
    kinds = {"-m": "module", "-c": "code"}
    if first in kinds:
        if not rest:
            raise ValueError(f"python {first} needs what to run after it")
        return PythonCommand(kinds[first], rest[0], rest[1:])
    if first.startswith("-"):
        raise ValueError(f"python {first}: options of python must be -m or -c here")
    return _script(first, rest)


def _script(path: str, rest: tuple[str, ...]) -> PythonCommand:
    if not Path(path).is_file():
        raise ValueError(f"{path} is not a file; must be a Python script")
    return PythonCommand("script", path, rest)


def _starts_python(path: Path) -> bool:
    """Whether its first line says so, as in programs that pip installs."""
    with path.open("rb") as file:
        line = file.readline(256)
    return line.startswith(b"#!") and b"python" in line


def _instead() -> str:
    """What profiles other programs, if this machine has it."""
    if shutil.which("nsys"):
        return "`nsys profile COMMAND` takes any program"
    return "NVIDIA's nsys (not installed here) takes any program"


def run(command: PythonCommand) -> None:
    """As the interpreter would run it, in the module `__main__`."""
    sys.argv = [command.target, *command.arguments]
    if command.kind == "module":
        # The folder of this module is not on the path with -m, but the current one is.
        runpy.run_module(command.target, run_name="__main__", alter_sys=True)
    elif command.kind == "code":
        sys.argv[0] = "-c"
        exec(compile(command.target, "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(command.target).resolve().parent)
        runpy.run_path(command.target, run_name="__main__")


def main(folder: str, threads: str, kind: str, target: str, *arguments: str) -> None:
    """Profile it; SystemExit passes through."""
    console = Console(stderr=True)  # the program's own output stays as it is
    with profile(folder, console=console, all_threads=threads == "all"):
        run(PythonCommand(kind, target, arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What `gossamer profile -- COMMAND` may run: Python programs, told from others by their words."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = re.compile(r"(python|pypy)[0-9.]*")
GOSSAMER = "gossamer.cli.main"


@dataclass(frozen=True)
class PythonCommand:
    """A program for Python's runpy: kind "module", "script" or "code", its target, arguments."""

    kind: str
    target: str
    arguments: tuple[str, ...] = ()


def parse(words: Sequence[str]) -> PythonCommand:
    """What these words would run in a shell. ValueError for what is not Python, or nothing."""
    if not words:
        raise ValueError("nothing to profile; give a command after --")
    first, rest = words[0], tuple(words[1:])
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


def _interpreter(words: tuple[str, ...]) -> PythonCommand:
    """`python` with `-m MODULE`, `-c CODE` or a script; other options of it are refused."""
    if not words:
        raise ValueError("python without a program; must have a script, -m MODULE or -c CODE")
    first, rest = words[0], words[1:]
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

"""`python -m gossamer.profiling.run FOLDER THREADS KIND TARGET ARGUMENTS...`: a program, profiled.

The child process of `gossamer profile`: nothing of the program is imported or changed before it
runs, and what it ends with (an exit code, an exception) is what this process ends with.
"""

import runpy
import sys
from pathlib import Path

from rich.console import Console

from gossamer.profiling.command import PythonCommand
from gossamer.profiling.session import profile


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

"""A copy of the checkout to write into, and processes that use the copy's package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gossamer import native

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "cmake", "csrc", "docs", "gossamer", "include", "tests")
FILES = (".clang-format", "CMakeLists.txt", "Makefile", "README.md", "pyproject.toml")

# An editable install finds its own files before PYTHONPATH; here the copy's are wanted.
SITE = """
import sys

sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
"""


def copy_checkout(target: Path) -> Path:
    """The checkout without what was built; the native libraries are links to those in use."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.so")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=unwanted)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)
    for library in (native.cpu, native.cuda):
        if library.path is not None:
            (target / "gossamer" / f"{library.name}.so").symlink_to(library.path.resolve())
    tools = target / ".tools"
    tools.mkdir()
    (tools / "sitecustomize.py").write_text(SITE.lstrip())
    for name, module in (("python", ""), ("gossamer", "-m gossamer.cli.main")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (tools / name).chmod(0o755)
    return target


def environment(copy: Path) -> dict[str, str]:
    """Variables for processes in the copy: `python` and `gossamer` are those of the copy."""
    tools = copy / ".tools"
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": f"{tools}:{copy}", "PATH": path}


def run(copy: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in the copy, with its output."""
    return subprocess.run(
        command,
        cwd=copy,
        env=environment(copy) | variables,
        capture_output=True,
        text=True,
        check=False,
    )

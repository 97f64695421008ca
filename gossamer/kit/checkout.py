"""A checkout of Gossamer: what a wheel does not hold (C++, benchmarks, tests, docs)."""

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

import gossamer

# What every checkout has; an installed package has none of it next to itself.
MARKS = (
    "CMakeLists.txt",
    "csrc/bindings.cpp",
    "gossamer/ops/__init__.py",
    "benchmarks/suites/all.py",
)


def check_checkout(root: Path) -> Path:
    """The folder itself. ValueError, with what is missing, where it is not a checkout."""
    missing = [mark for mark in MARKS if not (root / mark).is_file()]
    if missing:
        raise ValueError(
            f"{root} is not a checkout of Gossamer (no {missing[0]}); "
            "must be the root of its sources, which hold what a wheel does not"
        )
    return root


def this_checkout() -> Path:
    """The checkout that the running package belongs to. ValueError for an installed wheel."""
    return check_checkout(Path(gossamer.__file__).parents[1])


def load(module: str) -> ModuleType | None:
    """A module of this checkout's benchmarks or tests; None where there is none."""
    root = this_checkout()
    if not root.joinpath(*module.split(".")).with_suffix(".py").is_file():
        return None
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tests make odd tensors to see them refused
        return importlib.import_module(module)


def require(module: str) -> ModuleType:
    """The same, where it must be there. ValueError for an installed wheel."""
    found = load(module)
    assert found is not None, f"{module} is not in this checkout"
    return found

"""Data sets of Hugging Face's hub, by the package `datasets`: from its cache, or downloaded."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any


def load(name: str, config: str | None, split: str, instead: str) -> Iterable[Any]:
    """The rows of a data set. instead: what else the user can do.

    Raises ImportError without the package, and ValueError for whatever it trips over.
    """
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise ImportError(
            f"datasets is needed here and cannot be imported ({error}); "
            f"pip install gossamer[eval], or {instead}"
        ) from error
    try:
        rows: Iterable[Any] = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # of the network, of the cache, of scripts that are not allowed
        called = name if config is None else f"{name} {config}"
        raise ValueError(
            f"{called} cannot be loaded by datasets "
            f"({type(error).__name__}: {' '.join(str(error).split())}); {instead}"
        ) from error
    return rows

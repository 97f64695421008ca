"""Texts to measure on: a file, or the rows of a data set.

    my.txt                                                        UTF-8
    hf:Salesforce/wikitext,config=wikitext-2-raw-v1,split=test    a data set of Hugging Face's hub

A data set has config= (none by default), split= (test) and field= (text); its rows are joined by
empty lines.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from gossamer.ops.checks import one_of

HUB = "hf:"
DEFAULTS = {"config": "", "split": "test", "field": "text"}


def is_there(source: Path) -> bool:
    """Whether it can be tried: data sets are looked for when they are read."""
    return str(source).startswith(HUB) or source.is_file()


def existing_text(named: Path | None, default: Path) -> Path:
    """The text that was named, or the default of a checkout. Raises FileNotFoundError."""
    path = named or default
    if not is_there(path):
        wanted = "name one by --text FILE" if named is None else "must be a text file"
        raise FileNotFoundError(f"{path}: there is no such file; {wanted}")
    return path


def read_text(source: Path) -> tuple[str, str]:
    """The text and its name. Raises OSError, ImportError, or ValueError for what is no text."""
    if str(source).startswith(HUB):
        return _of_hub(str(source)), str(source)
    try:
        return source.read_text(encoding="utf-8"), source.name
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}: not UTF-8 text: {error}") from None


def _of_hub(source: str) -> str:
    name, *pairs = source.removeprefix(HUB).split(",")
    options = dict(DEFAULTS)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise ValueError(f"{source}: {pair!r} is not key=value")
        one_of(f"key of {source}", key, DEFAULTS)
        options[key] = value
    if not name:
        raise ValueError(f"{source}: names no data set; must be {HUB}OWNER/NAME")
    rows = load_dataset(name, options["config"] or None, options["split"], "name a text file")
    field, parts = options["field"], []
    for number, row in enumerate(rows, start=1):
        if field not in row or not isinstance(row[field], str):
            raise ValueError(
                f"{source}: row {number} has no text {field!r}; it has {', '.join(map(str, row))}"
            )
        parts.append(row[field])
    if not parts:
        raise ValueError(f"{source}: has no rows; name another split")
    return "\n\n".join(parts)


def load_dataset(name: str, config: str | None, split: str, instead: str) -> Iterable[Any]:
    """Rows of a data set of Hugging Face's hub, by the package `datasets`: cached or downloaded.

    instead: what else the user can do. Raises ImportError without the package, and ValueError where
    it fails.
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

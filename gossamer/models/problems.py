"""Errors of other libraries' readers, told as one ValueError that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Whatever a reader trips over inside becomes "path: what: problem"; ImportErrors stay."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:  # readers of damaged files raise anything: KeyError, IndexError, ...
        line = next(iter(str(error).strip().splitlines()), "")
        known = type(error) is ValueError and line
        raise ValueError(f"{path}: {what}: {line if known else repr(error)[:300]}") from error

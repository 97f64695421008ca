"""Packages that only an extra installs, imported where they are needed."""

import importlib
from typing import Any


def import_extra(module: str, extra: str = "models") -> Any:
    """A module of an extra; ImportError says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{package} is needed here and cannot be imported ({error}); "
            f"pip install 'gossamer[{extra}]'"
        ) from error

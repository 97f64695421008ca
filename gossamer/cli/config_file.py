"""`--config FILE`: options of a command in TOML. What is given on the command line wins."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from gossamer.cli.options import one_line_errors
from gossamer.ops.checks import nearest


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """A callback: the values become the defaults of the command's options."""
    if path is not None:
        with one_line_errors():
            context.default_map = {**(context.default_map or {}), **options_of(context, path)}
    return path


def options_of(context: typer.Context, path: Path) -> dict[str, Any]:
    """Values by parameter. Raises OSError, and ValueError that names file and option."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8
        raise ValueError(f"{path}: not TOML: {error}") from None
    known = {name: each for each in context.command.params for name in _names(each)}
    found: dict[str, Any] = {}
    for name, value in content.items():
        parameter = known.get(name.replace("_", "-"))
        if parameter is None or parameter.name == "config":
            valid = [name for name in known if name != "config"]
            raise ValueError(f"{path} has {name!r}{nearest(name, valid)}")
        if parameter.name in found:
            raise ValueError(f"{path} has {name!r} twice; must be there once, with - or with _")
        found[str(parameter.name)] = _value(f"{path}: {name}", parameter, value)
    return found


def _names(parameter: Any) -> list[str]:
    """As they are written in a file: max-num-seqs; of an argument, its own name."""
    if parameter.param_type_name == "argument":
        return [str(parameter.name)]
    return [option.lstrip("-") for option in parameter.opts if option.startswith("--")]


def _value(where: str, parameter: Any, value: Any) -> Any:
    """Options that are repeated are lists in a file; of NAME=VALUE, tables too."""
    if getattr(parameter, "multiple", False):
        if isinstance(value, Mapping):
            value = [f"{name}={each}" for name, each in value.items()]
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValueError(f"{where} is {value!r}; must be a list of strings")
        return value
    is_flag = getattr(parameter, "is_flag", False)
    if is_flag != isinstance(value, bool) or not isinstance(value, str | int | float):
        valid = "true or false" if is_flag else "a string or a number"
        raise ValueError(f"{where} is {value!r}; must be {valid}")
    return value

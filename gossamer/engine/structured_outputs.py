"""What an output must look like: JSON of a schema, a regex, one of some strings, or a grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

MAX_SCHEMA = 1 << 16  # bytes of JSON: a thousand fields; compiling 3,000 takes half a second
MAX_DEPTH = 64  # objects and arrays within each other; a level of a schema is two
MAX_REGEX = 4096  # characters
MAX_CHOICES = 1024
MAX_GRAMMAR = 1 << 16  # characters
VALUES = ("enum", "const", "default", "examples")  # not schemas
SECONDS = r"^[^.]*(\.[0-9]{1,9}[Zz+-].*)?$"
PLACE = 80  # characters of a place that is named


class Wanted(NamedTuple):
    """kind: json, regex, choice or grammar; text: JSON, or the regex or grammar itself.

    Equal ones are compiled once.
    """

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """One of these; names and meanings are vLLM's. Raises TypeError or ValueError with the place.

    json: a JSON schema, as a dict or as text, that the output is a document of. json_object: any
    JSON object. regex: the whole output matches it (no look-around, no back references). choice:
    the output is one of these strings. grammar: Lark's notation as llguidance reads it, or GBNF.
    """

    json: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(f.name for f in fields(self))
            found = " and ".join(given) or "nothing"
            raise ValueError(f"structured_outputs has {found}; must have one of {names}")
        if self.json_object not in (True, False):
            raise TypeError(f"json_object is {self.json_object!r}; must be True or False")
        _ = self.wanted  # checks it

    @cached_property
    def wanted(self) -> Wanted:
        if self.json_object:
            return Wanted("json", '{"type":"object"}')
        if self.json is not None:
            return Wanted("json", _schema_text(self.json))
        if self.choice is not None:
            return Wanted("choice", json.dumps(_choices(self.choice)))
        if self.regex is not None:
            return Wanted("regex", _text("regex", self.regex, MAX_REGEX))
        return Wanted("grammar", _text("grammar", self.grammar, MAX_GRAMMAR))


def _schema_text(schema: Any) -> str:
    """The schema as JSON, with its fields in their order, which is that of the output."""
    if isinstance(schema, str):
        _text("json", schema, MAX_SCHEMA)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"json is not JSON: {error}") from None
    if not isinstance(schema, Mapping):
        raise TypeError(f"json is {type(schema).__name__}; must be a JSON schema, an object")
    _check_depth(schema)
    try:
        text = json.dumps(bounded(schema), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"json is no JSON schema: {error}") from None
    if len(text) > MAX_SCHEMA:
        raise ValueError(f"json has {len(text)} bytes; must have at most {MAX_SCHEMA}")
    return text


def bounded(part: Any) -> Any:
    """The schema, with at most nine digits of a second: formats allow any number of them."""
    if isinstance(part, list | tuple):
        return [bounded(inner) for inner in part]
    if not isinstance(part, Mapping):
        return part
    found = {key: each if key in VALUES else bounded(each) for key, each in part.items()}
    timed = found.get("format")
    if isinstance(timed, str) and timed in ("date-time", "time"):
        found.setdefault("pattern", SECONDS)
    return found


def _check_depth(schema: Any) -> None:
    level = [("", schema)]
    for _ in range(MAX_DEPTH):
        level = [(f"{at}/{key}", part) for at, whole in level for key, part in _parts(whole)]
        if len(level) > MAX_SCHEMA:
            raise ValueError(f"json is too large; must have at most {MAX_SCHEMA} bytes")
    deeper = [at for at, part in level if isinstance(part, Mapping | list | tuple)]
    if deeper:
        place = deeper[0][:PLACE]
        raise ValueError(f"json is too deep at {place}; must have at most {MAX_DEPTH} levels")


def _parts(value: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def _choices(choice: Any) -> list[str]:
    if not isinstance(choice, list | tuple) or not all(isinstance(c, str) for c in choice):
        raise TypeError(f"choice is {choice!r:.80}; must be a list or tuple of strings")
    if not 1 <= len(choice) <= MAX_CHOICES:
        raise ValueError(f"choice has {len(choice)} strings; must have 1 to {MAX_CHOICES}")
    for i, each in enumerate(choice):
        if not each:
            raise ValueError(f"choice {i} is empty; must have at least one character")
    if sum(map(len, choice)) > MAX_GRAMMAR:
        raise ValueError(f"choice is too long; must have at most {MAX_GRAMMAR} characters")
    return list(choice)


def _text(name: str, value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.80}; must be a string")
    if not 1 <= len(value) <= most:
        raise ValueError(f"{name} has {len(value)} characters; must have 1 to {most}")
    return value

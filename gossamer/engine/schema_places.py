"""Where in a JSON schema a mistake is, and whether any finite document fits it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MANY = ("properties", "patternProperties", "$defs", "definitions")  # of schemas by name
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "additionalItems")
DEFINITIONS = ("$defs", "definitions")
SECONDS = 1.0  # to look for a place, of which a part takes about 0.1 ms


def place_of(schema: Mapping[str, Any], message: str, refuse: Callable[[str], str | None]) -> str:
    """As a JSON pointer: the smallest part that is refused with this message by itself.

    refuse: what is wrong with a schema, given as JSON; None for nothing.
    """
    known = {name: schema[name] for name in DEFINITIONS if name in schema}
    place, part, end = "#", schema, time.monotonic() + SECONDS
    while True:
        for where, inner in _children(part):
            if time.monotonic() > end:
                return place
            alone = {**known, **inner}
            if refuse(json.dumps(alone)) == message:
                place, part = f"{place}/{where}", inner
                break
        else:
            return place


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts that are schemas, except True and False."""
    for name in MANY:
        inner = schema.get(name)
        if isinstance(inner, Mapping):
            for key, each in inner.items():
                if isinstance(each, Mapping):
                    yield f"{name}/{_escaped(key)}", each
    for name in LISTS:
        listed = schema.get(name)
        if isinstance(listed, list):
            yield from (
                (f"{name}/{i}", each) for i, each in enumerate(listed) if isinstance(each, Mapping)
            )
    for name in SINGLE:
        if isinstance(schema.get(name), Mapping):
            yield name, schema[name]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def finite(schema: Mapping[str, Any]) -> bool:
    """Whether documents end: False where each must have another one of its kind in it.

    Of references into the schema itself; everything else is taken to end. What is known to end
    grows until nothing is added, in both orders, as one reference may wait for the next.
    """
    targets = {reference: _target(schema, reference) for reference in _references(schema)}
    ending, before = set[str](), -1
    while len(ending) > before:
        before = len(ending)
        for order in (list(targets), list(reversed(targets))):
            for each in order:
                if _ends(targets[each], ending):
                    ending.add(each)
    return _ends(schema, ending)


def _ends(schema: Any, ending: set[str]) -> bool:
    """ending: references to what ends."""
    if not isinstance(schema, Mapping):
        return True
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in ending:
        return False
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        if isinstance(options, list) and options and not any(_ends(o, ending) for o in options):
            return False
    return all(_ends(part, ending) for part in _needed(schema))


def _needed(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Parts of which every document has one."""
    every = schema.get("allOf")
    yield from every if isinstance(every, list) else ()
    kind = schema.get("type")
    if kind in ("object", ["object"]):
        fields, names = schema.get("properties"), schema.get("required")
        if isinstance(fields, Mapping) and isinstance(names, list):
            yield from (fields[n] for n in names if isinstance(n, str) and n in fields)
    if kind in ("array", ["array"]):
        least, first = schema.get("minItems", 0), schema.get("prefixItems", [])
        if isinstance(least, int) and isinstance(first, list):
            yield from first[:least]
            if least > len(first):
                yield schema.get("items")


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from _references(inner)


def _target(root: Any, reference: str) -> Any:
    """None where there is nothing."""
    found = root if reference.startswith("#") else None
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found

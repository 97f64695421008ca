"""JSON schemas that Hypothesis makes, of the kinds that are supported.

They are small enough for a small model to fill within its limit of tokens.
"""

import json
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Schema = dict[str, Any]

WORDS = ["name", "age", "city", "price", "tags", "id", "size", "note", "kind", "unit", "in stock"]
PATTERNS = [r"^[A-Z]{2}[0-9]{4}$", r"^(red|green|blue)(ish)?$", r"^[a-z]{1,6}(-[a-z]{1,6})?$"]
FORMATS = ["date", "ipv4", "uuid", "date-time"]
VALUES = ["a", "b c", 'quoted "d"', "é", 1, 2.5, True, None]
DEPTH = 3
SEED = 28


@cache
def schemas(count: int) -> list[Schema]:
    """Different ones, the same for the same version of Hypothesis."""
    found: dict[str, Schema] = {}

    @seed(SEED)
    @settings(
        max_examples=4 * count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(whole())
    def note(schema: Schema) -> None:
        if len(found) < count:
            found[json.dumps(schema)] = schema

    note()
    assert len(found) == count, "few of them are made twice"
    return list(found.values())


@st.composite
def whole(draw: st.DrawFn) -> Schema:
    """An object; some refer to a definition."""
    schema: Schema = draw(objects(DEPTH))
    if draw(st.integers(0, 2)) == 0:
        schema["$defs"] = {"part": draw(anything(1))}
        schema["properties"]["shared"] = {"$ref": "#/$defs/part"}
        schema["required"].append("shared")
    return schema


def anything(depth: int) -> st.SearchStrategy[Schema]:
    """Whatever is in an object, in at most so many levels."""
    kinds = [strings(), integers(), numbers(), values()]
    if depth > 0:
        kinds += [objects(depth - 1), arrays(depth - 1), tuples(), optional()]
    return st.one_of(kinds)


@st.composite
def objects(draw: st.DrawFn, depth: int) -> Schema:
    names = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4, unique=True))
    return {
        "type": "object",
        "properties": {name: draw(anything(depth)) for name in names},
        "required": [name for name in names if draw(st.booleans())],
        "additionalProperties": False,
    }


@st.composite
def arrays(draw: st.DrawFn, depth: int) -> Schema:
    least, more = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    items = draw(anything(depth))
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}


@st.composite
def tuples(draw: st.DrawFn) -> Schema:
    first = draw(st.lists(anything(0), min_size=1, max_size=3))
    sizes = {"minItems": len(first), "maxItems": len(first)}
    return {"type": "array", "prefixItems": first, "items": False, **sizes}


def optional() -> st.SearchStrategy[Schema]:
    return anything(0).map(lambda schema: {"anyOf": [schema, {"type": "null"}]})


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    least, more = draw(st.integers(0, 3)), draw(st.integers(0, 12))
    held: Schema = draw(
        st.just({"minLength": least, "maxLength": least + more})
        | st.sampled_from(PATTERNS).map(lambda pattern: {"pattern": pattern})
        | st.sampled_from(FORMATS).map(lambda name: {"format": name})
    )
    return {"type": "string", **held}


@st.composite
def integers(draw: st.DrawFn) -> Schema:
    low, more = draw(st.integers(-1000, 1000)), draw(st.integers(0, 5000))
    return {"type": "integer", "minimum": low, "maximum": low + more}


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-50, 50))
    return {"type": "number", "minimum": low, "maximum": low + 100, "multipleOf": 0.25}


def values() -> st.SearchStrategy[Schema]:
    some = st.lists(st.sampled_from(VALUES), min_size=3, max_size=3, unique_by=repr)
    return st.one_of(
        some.map(lambda found: {"enum": found}),
        st.sampled_from(["fixed", 7, None]).map(lambda value: {"const": value}),
        st.just({"type": "boolean"}),
    )

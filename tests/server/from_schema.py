"""Values that a JSON schema describes, as far as pydantic's schemas go."""

from typing import Any

from hypothesis import strategies as st

LONGEST = 20  # items and characters; longer ones are tested by name
LARGEST = 2**70


def values(part: Any, schema: Any) -> st.SearchStrategy[Any]:
    """part: of `schema`, whose components it may refer to."""
    if "$ref" in part:
        return values(schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]], schema)
    if "anyOf" in part:
        return st.one_of([values(each, schema) for each in part["anyOf"]])
    if "const" in part or "enum" in part:
        return st.sampled_from(part.get("enum") or [part["const"]])
    if part.get("type") == "array":
        low, high = sizes(part, "Items")
        return st.lists(values(part["items"], schema), min_size=low, max_size=high)
    if part.get("type") == "object":
        required, optional = fields(part, schema)
        return st.fixed_dictionaries(required, optional=optional)
    return scalars(part)


def fields(part: Any, schema: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Strategies of an object's fields: those that must be there, and the others."""
    each = {name: values(inner, schema) for name, inner in part["properties"].items()}
    required = {name: each.pop(name) for name in part.get("required", ())}
    return required, each


def scalars(part: Any) -> st.SearchStrategy[Any]:
    kind = part.get("type")
    low = part.get("minimum", part.get("exclusiveMinimum", -LARGEST))
    high = part.get("maximum", part.get("exclusiveMaximum", LARGEST))
    if kind == "integer":
        return st.integers(low, high)
    if kind == "number":
        open_low = "exclusiveMinimum" in part
        return st.floats(low, high, exclude_min=open_low) | st.integers(int(low) + open_low, high)
    if kind == "string":
        shortest, longest = sizes(part, "Length")
        return st.text(min_size=shortest, max_size=longest)
    return {"boolean": st.booleans(), "null": st.none()}[kind]


def sizes(part: Any, what: str) -> tuple[int, int]:
    low = part.get(f"min{what}", 0)
    return low, max(low, min(part.get(f"max{what}", LONGEST), LONGEST))

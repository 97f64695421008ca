"""Values that a JSON schema describes, as far as pydantic's schemas go."""

from typing import Any

from hypothesis import strategies as st

LONGEST = 20  # items and characters; longer ones are tested by name
LARGEST = 2**70
# Good ones and bad ones, of all that may be in them.
JSON_SCHEMAS = st.recursive(
    st.sampled_from(
        [
            *({"type": "integer", "maximum": 5}, {"enum": ["a", 1]}, {"type": "boolean"}),
            *({}, {"type": "strin"}, {"$ref": "#"}, {"pattern": "(a"}, {"enum": []}, {"not": {}}),
            {"type": "string", "maxLength": 3},
        ]
    ),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b", "é"]), inner, max_size=2).map(
            lambda parts: {"type": "object", "properties": parts, "required": list(parts)}
        ),
        inner.map(lambda part: {"type": "array", "items": part, "maxItems": 2}),
        st.lists(inner, max_size=2).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=4,
)


def values(part: Any, schema: Any) -> st.SearchStrategy[Any]:
    """part: of `schema`, whose components it may refer to."""
    if "$ref" in part:
        return values(schema["components"]["schemas"][part["$ref"].rsplit("/", 1)[1]], schema)
    for name in ("anyOf", "oneOf"):
        if name in part:
            return st.one_of([values(each, schema) for each in part[name]])
    if "const" in part or "enum" in part:
        return st.sampled_from(part.get("enum") or [part["const"]])
    if part.get("type") == "array":
        low, high = sizes(part, "Items")
        return st.lists(values(part["items"], schema), min_size=low, max_size=high)
    return objects(part, schema) if part.get("type") == "object" else scalars(part)


def objects(part: Any, schema: Any) -> st.SearchStrategy[Any]:
    if "properties" not in part:
        return mappings(part, schema)
    required, optional = fields(part, schema)
    return st.fixed_dictionaries(required, optional=optional)


def mappings(part: Any, schema: Any) -> st.SearchStrategy[Any]:
    """With any names, or with those of a JSON schema, which is what most of them are."""
    inner = part.get("additionalProperties", True)
    if inner is True:
        return JSON_SCHEMAS
    names = scalars({"type": "string", **part.get("propertyNames", {})})
    return st.dictionaries(names, values(inner, schema), max_size=3)


def fields(part: Any, schema: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Strategies of an object's fields: those that must be there, and the others."""
    each = {name: values(inner, schema) for name, inner in part["properties"].items()}
    required = {name: each.pop(name) for name in part.get("required", ())}
    return required, each


def scalars(part: Any) -> st.SearchStrategy[Any]:
    kind = part.get("type")
    if not part:
        return JSON_SCHEMAS
    if "pattern" in part:
        return st.from_regex(part["pattern"], fullmatch=True)
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

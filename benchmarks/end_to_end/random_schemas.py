"""Random JSON schemas of the kinds that are supported, of a size that a small model can fill."""

import random
from typing import Any

WORDS = ["name", "age", "city", "price", "tags", "id", "size", "note", "kind", "unit", "in stock"]
PATTERNS = [r"^[A-Z]{2}[0-9]{4}$", r"^(red|green|blue)(ish)?$", r"^[a-z]{1,6}(-[a-z]{1,6})?$"]
FORMATS = ["date", "ipv4", "uuid", "date-time"]
DEPTH = 3


def random_schema(seed: int) -> dict[str, Any]:
    """An object, the same for the same seed."""
    chance = random.Random(seed)
    schema = _object(chance, DEPTH)
    if chance.random() < 0.3:
        name = f"part{seed}"
        schema["$defs"] = {name: _any(chance, 1)}
        schema["properties"]["shared"] = {"$ref": f"#/$defs/{name}"}
        schema["required"].append("shared")
    return schema


def _any(chance: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _pattern, _format, _integer, _number, _enum, _const, _boolean]
    if depth:
        kinds += [_object, _array, _tuple, _either]
    return chance.choice(kinds)(chance, depth - 1)


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(WORDS, chance.randint(1, 4))
    required = [name for name in names if chance.random() < 0.7]
    return {
        "type": "object",
        "properties": {name: _any(chance, depth) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _array(chance: random.Random, depth: int) -> dict[str, Any]:
    least = chance.randint(0, 2)
    items = _any(chance, depth)
    most = least + chance.randint(0, 2)
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _tuple(chance: random.Random, depth: int) -> dict[str, Any]:
    first = [_any(chance, 0) for _ in range(chance.randint(1, 3))]
    count = len(first)
    return {
        "type": "array",
        "prefixItems": first,
        "items": False,
        "minItems": count,
        "maxItems": count,
    }


def _either(chance: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(chance, 0), {"type": "null"}]}


def _string(chance: random.Random, _: int) -> dict[str, Any]:
    least = chance.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + chance.randint(0, 12)}


def _pattern(chance: random.Random, _: int) -> dict[str, Any]:
    return {"type": "string", "pattern": chance.choice(PATTERNS)}


def _format(chance: random.Random, _: int) -> dict[str, Any]:
    return {"type": "string", "format": chance.choice(FORMATS)}


def _integer(chance: random.Random, _: int) -> dict[str, Any]:
    low = chance.randint(-1000, 1000)
    return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 5000)}


def _number(chance: random.Random, _: int) -> dict[str, Any]:
    low = chance.randint(-50, 50)
    return {"type": "number", "minimum": low, "maximum": low + 100, "multipleOf": 0.25}


def _enum(chance: random.Random, _: int) -> dict[str, Any]:
    return {"enum": chance.sample(["a", "b c", 'quoted "d"', "é", 1, 2.5, True, None], 3)}


def _const(chance: random.Random, _: int) -> dict[str, Any]:
    return {"const": chance.choice(["fixed", 7, None])}


def _boolean(_: random.Random, __: int) -> dict[str, Any]:
    return {"type": "boolean"}

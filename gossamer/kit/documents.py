"""Whether an op is written down: docstring, page, index."""

import re
from collections.abc import Sequence
from pathlib import Path

from gossamer.kit.pages import FOLDER, INDEX, page_of
from gossamer.ops import OPS

# What a docstring tells besides its arguments, and how one sees that it does.
TOLD = {
    "shapes": r"\[|shape",
    "dtypes": r"float|dtype|int8|floating",
    "errors (Raises)": r"\bRaises\b",
}


def undocumented(name: str, root: Path) -> list[str]:
    """What is missing, in words; [] where nothing is."""
    page = page_of(name, root)
    missing = docstring_gaps(page.docstring, arguments(page.signature), bool(OPS[name].mutates))
    path = root / FOLDER / f"{name}.md"
    if not path.is_file():
        missing.append(f"no {FOLDER}/{name}.md")
    elif path.read_text() != page.render():
        missing.append(f"{FOLDER}/{name}.md is stale: python -m gossamer.kit.pages --write")
    index = root / INDEX
    if not index.is_file() or f"[`{name}`]({name}.md)" not in index.read_text():
        missing.append(f"not in {INDEX}")
    return missing


def docstring_gaps(docstring: str, names: Sequence[str], mutates: bool = False) -> list[str]:
    """What a docstring does not tell about a function with these arguments."""
    if not docstring:
        return ["no docstring"]
    silent = [name for name in names if not re.search(rf"\b{name}\b", docstring)]
    gaps = [f"docstring without {', '.join(silent)}"] if silent else []
    told = dict(TOLD)
    if not mutates:
        told["the result"] = r"\bReturns\b|^Rows\b|\bresults?\b"
    return gaps + [
        f"docstring without {what}"
        for what, pattern in told.items()
        if not re.search(pattern, docstring)
    ]


def arguments(signature: str) -> list[str]:
    """The names in a signature that is written out, but for `backend`."""
    inside = signature.partition("(")[2].rpartition(") ->")[0]
    return [name for name in re.findall(r"(\w+):", inside) if name != "backend"]

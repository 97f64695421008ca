"""The KV caches that pages, examples, the Makefile and the package's own text name."""

import re
from pathlib import Path

from gossamer.kv import KVConfig

ROOT = Path(__file__).parents[2]
PLACES = ("README.md", "Makefile", "docs/**/*.md", "examples/*.py", "gossamer/**/*.py")
SPEC = re.compile(
    r"(?<![\w:=,])"  # the beginning of a spec, not its middle
    r"(?:dense:[a-z0-9]|coded:[0-9]|sparse:k=[0-9.]|k=(?:dense|sparse:[0-9.]|coded:[0-9]))"
    r"[\w.:@=,+%]*"
)


def named_specs() -> dict[str, list[str]]:
    """Every spec and the files that name it."""
    found: dict[str, list[str]] = {"dense": ["README.md"]}
    for pattern in PLACES:
        for path in sorted(ROOT.glob(pattern)):
            for match in SPEC.findall(path.read_text(encoding="utf-8")):
                found.setdefault(match.rstrip(".,:"), []).append(str(path.relative_to(ROOT)))
    return found


def parses(spec: str) -> bool:
    try:
        KVConfig.parse(spec)
    except ValueError:
        return False
    return True

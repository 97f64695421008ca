"""The blocks of code in a page."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCED = re.compile(
    r"(?:^<!-- needs: ([^\n]*) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class Snippet(NamedTuple):
    """needs: tools that a comment before the block names, or None."""

    needs: str | None
    language: str
    text: str

    @property
    def name(self) -> str:
        """The beginning, for the name of a test."""
        return self.text[:40].strip()


def page(path: str) -> str:
    """The text of a page; "" where it is missing, as in `make gpu-check`, which has no docs."""
    file = ROOT / path
    return file.read_text() if file.exists() else ""


def snippets(text: str) -> list[Snippet]:
    return [Snippet(*match.groups()) for match in FENCED.finditer(text)]

"""A hook of MkDocs: files outside docs/ that pages link to are part of the site.

Pages are written for a checkout, where a claim links to its records and code. Those files are
copied to files/ of the site; folders, which a site cannot show, become plain text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(?<!\!)\[([^\]\[]*(?:\[[^\]]*\][^\]\[]*)*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
FOLDER = "files"


def on_files(files: Files, config: Any) -> Files:
    """Adds every file that a page names and that is not a page."""
    root = Path(config["docs_dir"]).parent
    for page in [file for file in files if file.is_documentation_page()]:
        for _, target, _ in LINK.findall(page.content_string):
            place = outside(page.src_uri, target)
            if place is not None and (root / place).is_file():
                uri = f"{FOLDER}/{as_text(place)}"
                if files.get_file_from_path(uri) is None:
                    content = (root / place).read_bytes()
                    files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to what was added; text for folders."""
    here = page.file.src_uri

    def replaced(found: re.Match[str]) -> str:
        text, target, _ = found.groups()
        place = outside(here, target)
        if place is None:
            return found[0]
        added = f"{FOLDER}/{as_text(place)}"
        if files.get_file_from_path(added) is None:
            return text
        return f"[{text}]({posixpath.relpath(added, posixpath.dirname(here) or '.')})"

    return LINK.sub(replaced, markdown)


def outside(page: str, target: str) -> str | None:
    """The path below the root of a link that leaves docs/; None for others."""
    place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if place.startswith(("docs/", "..", "/")) or place == "docs" else place


def as_text(place: str) -> str:
    """Markdown and Python are shown as they are, not as pages."""
    return f"{place}.txt" if place.endswith((".md", ".html")) else place

"""One page of HTML that needs no other file: figures inside, no scripts, no fonts."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; }
body { max-width: 1150px; margin: 2em auto; padding: 0 1em; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2em; border-bottom: 1px solid #ddd; }
nav { columns: 3; font-size: 14px; } nav a { display: block; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
table { display: block; overflow-x: auto; }
th, td { padding: 3px 9px; border-bottom: 1px solid #e6e6e6; text-align: left; }
td { vertical-align: top; } tr:hover td { background: #f6f9fb; }
code { font-size: 12px; background: #f3f3f3; padding: 0 3px; }
figure { margin: 1.5em 0; } figure svg { max-width: 100%; height: auto; }
figcaption, details, .about { font-size: 13px; color: #555; }
""".strip()
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")
DECLARATION = re.compile(r"^.*?(?=<svg)", re.DOTALL)


@dataclass
class Page:
    """Parts in their order; headings make the table of contents."""

    title: str
    about: str
    parts: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)

    def section(self, heading: str, *markdown: str) -> None:
        """Paragraphs and tables of Markdown under a heading."""
        self.headings.append(heading)
        self.parts.append(f'<h2 id="{anchor(heading)}">{html.escape(heading)}</h2>')
        self.parts += [blocks(text) for text in markdown if text]

    def figure(self, svg: str, name: str, caption: str, values: Iterable[list[str]]) -> None:
        """A picture with its values below, folded away."""
        rows = [f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in values]
        table = f"<details><summary>values</summary><table>{''.join(rows)}</table></details>"
        told = f"<figcaption>{inline(caption)}</figcaption>" if caption else ""
        picture = DECLARATION.sub("", svg)
        self.parts.append(f'<figure id="{name}">{picture}{told}{table}</figure>')

    def render(self) -> str:
        links = "".join(f'<a href="#{anchor(h)}">{html.escape(h)}</a>' for h in self.headings)
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<link rel="icon" href="data:,">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
            f'<h1>{html.escape(self.title)}</h1>\n<p class="about">{inline(self.about)}</p>\n'
            f"<nav>{links}</nav>\n" + "\n".join(self.parts) + "\n</body>\n</html>\n"
        )


def anchor(heading: str) -> str:
    return re.sub(r"[^\w]+", "-", heading.lower()).strip("-")


def blocks(markdown: str) -> str:
    """Paragraphs and pipe tables, which is all that our tables are made of."""
    made = []
    for block in re.split(r"\n\s*\n", markdown.strip()):
        lines = block.strip().splitlines()
        if lines and lines[0].startswith("|"):
            made.append(_table(lines))
        elif lines:
            made.append(f"<p>{inline(' '.join(lines))}</p>")
    return "\n".join(made)


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    head = "".join(f"<th>{inline(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{inline(c)}</td>' for c in row)}</tr>" for row in rows[2:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def inline(text: str) -> str:
    """Code and bold; of links to files, which are not in the page, the text."""
    made = html.escape(LINK.sub(lambda found: found[1], text), quote=False)
    made = re.sub(r"`([^`]+)`", r"<code>\1</code>", made)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", made)

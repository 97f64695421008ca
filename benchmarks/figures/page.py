"""All figures as Markdown: docs/figures.md."""

from itertools import groupby

from benchmarks.figures.catalog import FIGURES, Figure
from benchmarks.records import Benchmarks, command_of


def figures_page() -> str:
    """By group: picture, what it is made of, and how that is measured again."""
    found = Benchmarks.of()
    parts = []
    for group, figures in groupby(FIGURES, key=lambda figure: figure.group):
        parts.append(f"## {group}")
        for figure in figures:
            chart = figure.make(found)
            parts.append(f"![{chart.title}](figures/{figure.name}.svg)")
            parts.append(f"[Values](figures/{figure.name}.csv). {origin(figure, found)}".strip())
    return "\n\n".join(parts)


def origin(figure: Figure, found: Benchmarks) -> str:
    """Records and commands, in a sentence; "" where nothing is measured."""
    if not figure.files:
        return ""
    commands = ", ".join(f"`{c}`" for c in dict.fromkeys(map(command_of, figure.files)))
    places = {file: found.where(file) for file in figure.files}
    links = [
        f"[{file}](../benchmarks/{place.relative_to(found.folder)})"
        for file, place in places.items()
        if place is not None
    ]
    return f"Made of {', '.join(links)}: {commands}." if links else f"Measured by {commands}."

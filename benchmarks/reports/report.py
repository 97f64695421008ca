"""`gossamer report`: everything that was measured on one page, and a summary in Markdown."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from benchmarks.figures.catalog import FIGURES
from benchmarks.figures.chart import COLUMNS, as_csv
from benchmarks.figures.command import digest
from benchmarks.figures.render import figure_of
from benchmarks.records import FOLDER, Benchmarks, MissingRecordsError, command_of, is_gpu
from benchmarks.reports import claims, codes, engine, masked, older, ops, published, quality, wins
from benchmarks.reports.html import Page
from benchmarks.reports.markdown import table
from gossamer import plotting
from gossamer._version import __version__

NAME = "gossamer-report"


def write(found: Benchmarks, folder: Path) -> tuple[list[Path], list[str]]:
    """NAME.html and NAME.md; the files, and what could not be made.

    Raises ImportError, ValueError.
    """
    plotting.check()
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    sections = _sections(found, problems)
    page = Page(f"Gossamer {__version__} on {found.name}", _about(found))
    for heading, text in sections.items():
        page.section(heading, text)
    _figures(page, found, problems)
    page.section("How to measure this again", _commands(found))
    files = [folder / f"{NAME}.html", folder / f"{NAME}.md"]
    files[0].write_text(page.render())
    parts = [f"# Gossamer {__version__} on {found.name}", _about(found)]
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    files[1].write_text("\n\n".join(parts) + "\n")
    return files, problems


def _about(found: Benchmarks) -> str:
    """Where and with what it was measured."""
    records = found.everything()
    versions: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in record.versions.items():
            versions.setdefault(name, {})[version] = None
    software = ", ".join(f"{name} {' and '.join(seen)}" for name, seen in versions.items())
    copies = sorted(record.ceiling_gbps for record in records)
    bandwidth = f"copy bandwidth {copies[0]:,.0f} to {copies[-1]:,.0f} GB/s"
    return (
        f"{found.name}; {software}; {bandwidth}; {len(records):,} records. Results of timed calls "
        "of operators were compared with an oracle in the same run. Panels on yellow paper are "
        "published figures of others."
    )


def _sections(found: Benchmarks, problems: list[str]) -> dict[str, str]:
    """Tables by heading. One that cannot be made is told and keeps no other back."""
    makers: dict[str, Callable[[], str]] = {
        "Wins and losses": lambda: wins.wins_table(found.everything()),
        "Where Gossamer loses": lambda: ops.loss_table(found.everything()),
        "Quality of caches": lambda: quality.chosen_table(found.folder / "quality"),
        "Engine": lambda: engine.engine_table(found.everything()),
    }
    if is_gpu(found.device):
        makers |= {
            "Claims": lambda: claims.claims_table(found),
            "Published and redone": lambda: published.published_table(found),
            "Caches: quality, bytes, speed": lambda: codes.timed(found.records(codes.FILE)),
            "Masked attention": lambda: masked.headline(found.records("masked_attention")),
        }
    if found.folder == FOLDER:
        makers["Older records"] = older.older_table
    order = ("Claims", "Wins and losses", "Published and redone")
    made = {}
    for heading in (*(h for h in order if h in makers), *(h for h in makers if h not in order)):
        try:
            made[heading] = makers[heading]()
        except (ValueError, KeyError, TypeError) as error:
            problems.append(f"{heading}: {error}")
    return made


def _figures(page: Page, found: Benchmarks, problems: list[str]) -> None:
    for group, figures in groupby(FIGURES, key=lambda figure: figure.group):
        page.section(f"Figures: {group}")
        for figure in figures:
            try:
                chart = figure.make(found)
            except MissingRecordsError as error:
                problems.append(f"{figure.name}: {error}")
                continue
            except (ValueError, KeyError, TypeError) as error:
                problems.append(f"{figure.name}: {type(error).__name__}: {error}")
                continue
            with plotting.style():
                text = plotting.svg(figure_of(chart), Description=digest(as_csv(chart.rows())))
            commands = dict.fromkeys(f"`{command_of(file)}`" for file in figure.files)
            caption = f"Measured by {', '.join(commands)}." if commands else ""
            rows = [[f"{row.get(name, '')}" for name in COLUMNS] for row in chart.rows()]
            page.figure(text, figure.name, caption, [list(COLUMNS), *rows])


def _commands(found: Benchmarks) -> str:
    """Every file of records with what measures it."""
    rows = []
    for path in sorted((found.folder / "results" / found.device).glob("*.jsonl")):
        records = found.records(path.stem)
        revisions = ", ".join(dict.fromkeys(f"`{r.revision}`" for r in records))
        rows.append([path.stem, str(len(records)), f"`{command_of(path.stem)}`", revisions])
    return table(["records", "points", "command", "measured at"], rows)

"""The generated tables of README.md and docs/*.md, made from the committed result files.

A page names a table by the marks around it, `<!-- kv -->` and `<!-- /kv -->`; any page may have any
table.
"""

import re
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.figures.page import figures_page
from benchmarks.reports import (
    claims,
    codes,
    compare,
    decode,
    engine,
    fusion,
    loads,
    masked,
    older,
    ops,
    planning,
    published,
    quality,
    weights,
    wins,
)
from gossamer.bench import Record, read_records
from gossamer.bench.suite import RESULTS

MARK = re.compile(r"<!-- (/?)([a-z][a-z0-9-]*) -->")


def by_device(
    make: Callable[[list[Record]], str],
    results: Path = RESULTS,
    *,
    files: str = "*",
    only: str = "*",
    gpu: bool | None = None,
) -> str:
    """`make` of each device's records, under the device's name.

    files: the op whose run the heading describes. only: the files that are read, where two hold
    the same op. gpu: only GPUs, or none. Where no device has records, it says so.
    """
    parts = []
    for folder in sorted(f for f in results.iterdir() if f.is_dir()):
        found = {f.stem: read_records(f) for f in sorted(folder.glob(f"{only}.jsonl"))}
        records = [r for lines in found.values() for r in lines]
        on_gpu = any(r.backend in ("cuda", "triton") for r in records)
        if records and gpu in (None, on_gpu):
            described = [r for op, lines in found.items() if fnmatch(op, files) for r in lines]
            first = (described or records)[0]
            software = ", ".join(f"{k} {v}" for k, v in first.versions.items())
            heading = f"**{first.device}** (copy {first.ceiling_gbps:.0f} GB/s; {software})"
            parts.append(f"{heading}\n\n{make(records)}")
    missing = "Not measured on a GPU yet." if gpu else "Not measured yet."
    return "\n\n".join(parts) or missing


def tables(results: Path = RESULTS) -> dict[str, Callable[[], str]]:
    """What makes each table, by the name of its marks."""
    own = partial(by_device, results=results)
    on_gpu = partial(own, gpu=True)
    found: dict[str, Callable[[], str]] = {
        "headline": partial(own, ops.headline_table, files="fused_*"),
        "fused": partial(own, ops.fused_table, files="*rmsnorm"),
        "gemms": partial(own, ops.gemm_table, files="linear_*"),
        "losses": partial(own, ops.loss_table),
        "kv": partial(own, ops.kv_table, files="kv_*"),
        "quality": quality.quality_table,
        "chosen": quality.chosen_table,
        "peers": quality.peer_table,
        "engine": partial(own, engine.engine_table, files="engine_*"),
        "steps": partial(own, engine.step_table, files="engine_codes", only="engine_codes"),
        "comparison": compare.committed,
        "prefill": partial(own, engine.prefill_table, files="engine_prefill"),
        "handoff": partial(
            own, engine.handoff_table, files="engine_handoff", only="engine_handoff"
        ),
        "weights": partial(own, weights.speed_table, files="engine_weights", only="engine_weights"),
        "weights-quality": weights.quality_table,
        "transformers": partial(on_gpu, engine.transformers_table, files="transformers_*"),
        "masked": partial(on_gpu, masked.headline, files="masked_*"),
        "regret": partial(on_gpu, masked.regret, files="masked_*"),
        "host": partial(on_gpu, masked.host, files="masked_*"),
        "loads": loads.loads,
        "fusion": partial(own, fusion.means, files="fusion", only="fusion"),
        "fusion-points": partial(own, fusion.points, files="fusion", only="fusion"),
        "fusion-failed": partial(fusion.failed, results),
        "claims": claims.readme_table,
        "claims-records": claims.claims_table,
        "figures": figures_page,
        "older": older.older_table,
        "published": published.published_table,
        "wins": partial(own, wins.wins_table),
        "planned": planning.errors,
        "planned-later": planning.errors_later,
        "planned-before": planning.errors_before,
        "planned-latency": planning.latencies,
    }
    for name in planning.EXAMPLES:
        found[f"plan-{name}"] = partial(planning.example, name)
    for name, of_codes in (
        ("decode-codes", codes.decode_codes),
        ("recommended", codes.recommended),
        ("timed", codes.timed),
    ):
        found[name] = partial(on_gpu, of_codes, files=codes.FILE, only=codes.FILE)
    for gpu, made in ((True, decode.GPU_TABLES), (False, decode.CPU_TABLES)):
        for name, make in made.items():
            found[name] = partial(
                own, make, files="decode_attention", only="decode_attention", gpu=gpu
            )
    return found


def updated(page: str, results: Path = RESULTS) -> str:
    """The page with fresh tables between its marks.

    Raises ValueError for marks of an unknown table, and for one without the other.
    """
    made, parts, at = tables(results), [], 0
    marks = list(MARK.finditer(page))
    for start, end in zip_longest(marks[::2], marks[1::2]):
        name = start[2]
        if name not in made:
            raise ValueError(f"{start[0]} is no table; must be one of {', '.join(sorted(made))}")
        if start[1] or end is None or (end[1], end[2]) != ("/", name):
            pair = f"<!-- {name} --> ... <!-- /{name} -->"
            raise ValueError(f"{start[0]} is alone; must be a pair {pair}")
        parts += [page[at : start.end()], f"\n{made[name]()}\n"]
        at = end.start()
    return "".join(parts) + page[at:]


def pages(root: Path = Path()) -> list[Path]:
    """Those that have tables."""
    found = (root / "README.md", *sorted((root / "docs").glob("*.md")))
    return [path for path in found if MARK.search(path.read_text())]


def main(
    results: Annotated[Path, typer.Option(help="folder of the result files")] = RESULTS,
    write: Annotated[bool, typer.Option("--write", help="update the pages")] = False,
) -> None:
    """Print the headline tables, or update the pages that show tables."""
    if not write:
        made = tables(results)
        for name in ("headline", "kv", "decode"):
            typer.echo(made[name]())
        return
    for path in pages():
        try:
            path.write_text(updated(path.read_text(), results))
        except ValueError as error:
            raise typer.BadParameter(f"{path}: {error}") from None


if __name__ == "__main__":
    typer.run(main)

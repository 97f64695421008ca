"""A plan as a table for terminals and Markdown pages, as JSON, and what to know of its numbers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from gossamer.planning.fleet import Demand, Fleet, Impossible

Row = Fleet | Impossible
RATE = "requests/s each"
COLUMNS = (
    "cache", "GPUs", "replicas", "KV per sequence", "fit", RATE, "limit", "batch",
    "TPOT", "TTFT", "prompts", "weights", "KV",
)  # fmt: skip
ESTIMATE = "~"  # before a cache of which no decode attention was measured


def cells(row: Row) -> list[str]:
    """One for each of COLUMNS; of an impossible cache, its name alone."""
    if isinstance(row, Impossible):
        return [row.kv, "-", *[""] * (len(COLUMNS) - 2)]
    state, replica, shares = row.state, row.replica, row.state.shares
    return [
        ("" if replica.model.measured else ESTIMATE) + row.kv,
        f"{row.gpus:,}",
        f"{row.replicas:,} x {row.ranks}",
        f"{replica.sequence_bytes / 1e9:.2f} GB",
        f"{replica.fits:,}",
        f"{state.rate:.3g} of {row.most:.3g}",
        replica.limit,
        f"{state.batch:.1f}",
        f"{1e3 * state.tpot:.1f} ms",
        f"{1e3 * state.ttft:,.0f} ms",
        *(f"{shares[name]:.0%}" for name in ("prompts", "weights", "kv")),
    ]


def rich_table(rows: Sequence[Row]) -> Table:
    table = Table()
    table.add_column(COLUMNS[0], overflow="fold")
    for name in COLUMNS[1:]:
        justify: Literal["left", "right"] = "left" if name == "limit" else "right"
        table.add_column(name, justify=justify, no_wrap=name == RATE)
    for row in rows:
        table.add_row(*map(escape, cells(row)))
    return table


def markdown(rows: Sequence[Row]) -> str:
    lines = [list(COLUMNS), ["---"] * len(COLUMNS)]
    for row in rows:
        cache, *others = cells(row)
        lines.append([f"`{cache}`", *others])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def notes(demand: Demand, rows: Sequence[Row]) -> list[str]:
    """What the numbers rest on, and what is no measurement."""
    gpu, traffic, given = demand.gpu, demand.traffic, str(demand.bounds)
    found = [
        f"{demand.rate:g} requests/s of {traffic.prompt:,} tokens in "
        f"({traffic.prefix_hit:.0%} of them cached) and {traffic.output:,} out; "
        f"{demand.utilisation:.0%} of a replica's highest rate" + (f"; {given}" if given else "")
    ]
    if gpu.scaled_from is None:
        found.append(f"{gpu.name}: measured kernels, the engine at {gpu.engine.revision}")
    else:
        found.append(f"{gpu.name}: scaled from {gpu.scaled_from} by data sheets, not measured")
    kinds = [row for row in rows if isinstance(row, Fleet)]
    if any(row.ranks > 1 for row in kinds):
        found.append("more than one GPU a replica: links by their data sheet, not measured")
    if not all(row.replica.model.measured for row in kinds):
        found.append(
            f"{ESTIMATE}: nobody measured this layout; its time is an estimate, that of the most "
            "similar one by its bytes"
        )
    found += [f"{row.kv}: {row.reason}" for row in rows if isinstance(row, Impossible)]
    return found


def facts(demand: Demand, rows: Sequence[Row]) -> dict[str, Any]:
    """For JSON."""
    gpu = demand.gpu
    return {
        "gpu": {
            "name": gpu.name,
            "scaled_from": gpu.scaled_from,
            "engine_revision": gpu.engine.revision,
            "fitted_to": gpu.engine.fitted,
        },
        "traffic": asdict(demand.traffic),
        "requests_per_second": demand.rate,
        "utilisation": demand.utilisation,
        "bounds_ms": asdict(demand.bounds),
        "limits": asdict(demand.limits),
        "caches": [row.facts if isinstance(row, Fleet) else asdict(row) for row in rows],
        "notes": notes(demand, rows),
    }

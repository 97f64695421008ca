"""`gossamer doctor`: what this machine has, and which backend of which op works on it."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gossamer.cli import options as o
from gossamer.diagnosis import Cell, Diagnosis, diagnose

STYLES = {"works": "green", "unavailable": "dim", "broken": "bold red"}


def doctor(
    kv: o.Caches = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model whose cache it is", is_eager=True),
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads; default: 32")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="KV heads; default: 8")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head; default: 128")] = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    calibration: o.CalibrationFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON")] = False,
) -> None:
    """Check the installation; with --kv, which kernel a KV cache decodes with and how fast.

    Exit code 1 if something is broken.
    """
    sizes = o.given(heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    if kv:
        engine = o.given(dtype=dtype, device=device, calibration=calibration)
        with o.one_line_errors():
            _caches(kv, model, sizes, engine, as_json=as_json)
        return
    if model is not None or sizes or calibration is not None:
        with o.one_line_errors():
            raise ValueError("--model and sizes of heads are for --kv; must come with one")
    found = diagnose()
    if as_json:
        typer.echo(json.dumps(asdict(found), default=str, indent=2))
    else:
        _print(found, Console())
    if found.problems:
        raise typer.Exit(1)


def _caches(
    specs: list[str],
    model: str | None,
    heads: dict[str, int],
    engine: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    from gossamer.cli.doctor_kv import Asked, cache_reports, print_caches

    reports = list(cache_reports(Asked(specs, model, heads, engine)))
    if as_json:
        typer.echo(json.dumps([report.facts for report in reports], indent=2))
    else:
        print_caches(reports, o.stdout_console())


def _print(found: Diagnosis, console: Console) -> None:
    console.print(_facts(found))
    console.print(_backends(found.cells))
    notes = dict.fromkeys((c.backend, c.detail) for c in found.cells if c.state == "unavailable")
    for backend, reason in notes:
        console.print(Text(f"{backend}: {reason}", style="dim"))
    for op, formats in found.tuned.items():
        console.print(Text(f"{op}: cuda takes {formats}; triton takes everything", style="dim"))
    for problem in found.problems:
        console.print(Text(f"problem: {problem}", style="bold red"))
    if not found.problems:
        console.print("[green]Everything that should work here works.[/green]")


def _facts(found: Diagnosis) -> Table:
    table = Table(show_header=False, box=None)
    table.add_row("versions", ", ".join(f"{k} {v}" for k, v in found.versions.items()))
    for device in found.devices:
        table.add_row("device", device)
    table.add_row("CPU features", ", ".join(found.cpu_features) or "baseline")
    for library in found.libraries:
        state = f"loaded, {library.path}" if library.loaded else f"not loaded: {library.problem}"
        table.add_row(f"{library.name}.so", Text(state))
    table.add_row("CPU kernels", found.cpu_isa or "none")
    return table


def _backends(cells: list[Cell]) -> Table:
    backends = list(dict.fromkeys(cell.backend for cell in cells))
    table = Table("op", *backends)
    for op in dict.fromkeys(cell.op for cell in cells):
        row = {c.backend: Text(c.state, style=STYLES[c.state]) for c in cells if c.op == op}
        table.add_row(op, *(row.get(backend, Text("-")) for backend in backends))
    return table

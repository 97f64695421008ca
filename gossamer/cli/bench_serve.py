"""`gossamer bench serve`: a load test of a running server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossamer.cli import options as o
from gossamer.workloads.bounds import Bounds
from gossamer.workloads.named import numbers_of

if TYPE_CHECKING:
    from gossamer.server.load.sweep import LoadTest

DEFAULTS = {"requests": 100, "inputs": (100, 500), "outputs": (20, 100), "prefix": 0, "prefixes": 1}


def serve(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the server")
    ] = "http://127.0.0.1:8000",
    workload: o.WorkloadName = None,
    requests: Annotated[
        int | None, typer.Option(help="Number of requests; default: 100, or the workload's")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second, as a Poisson process; default: all at once"),
    ] = None,
    rates: Annotated[
        str | None, typer.Option(help="Several rates, one after another, e.g. 1,2,4,8")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Maximum number of open requests; default: no limit")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option("--input", help="Prompt lengths: MIN,MAX; default: 100,500")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option("--output", help="Output lengths: MIN,MAX; default: 20,100")
    ] = None,
    prefix: o.Prefix = None,
    prefixes: o.Prefixes = None,
    leaving: Annotated[float, typer.Option(help="Share of clients that disconnect early")] = 0.0,
    goodput: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            help="Count requests within bounds in ms: ttft:500,tpot:50,e2e:5000 or some of them",
        ),
    ] = None,
    warm_up: Annotated[int, typer.Option(help="Number of requests to send before, unmeasured")] = 0,
    processes: Annotated[int, typer.Option(help="Number of processes of clients")] = 1,
    model: Annotated[
        str | None, typer.Option(help="Model that the server must have; default: any")
    ] = None,
    kv: Annotated[
        str | None, typer.Option(metavar="SPEC", help="KV cache of the server to use")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of lengths, tokens and times")] = 0,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="GOSSAMER_API_KEY", show_envvar=True, help="API key of the server"),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a figure, .png or .svg; with --rates, of throughput against latency",
        ),
    ] = None,
    results: o.Results = None,
) -> None:
    """Measure a running server: latency percentiles, throughput, goodput, errors."""
    with o.one_line_errors():
        if rate is not None and rates is not None:
            raise ValueError("--rate and --rates exclude each other")
        given = o.mix_given(requests, inputs, outputs, prefix, prefixes)
        load = {
            **numbers_of(workload, DEFAULTS, given),
            "concurrency": concurrency,
            "leaving": leaving,
            "kv": kv,
            "seed": seed,
            "workload": workload,
        }
        wanted = {
            "rates": (rate,) if rates is None else o.rates("rates", rates),
            "warm_up": warm_up,
            "processes": processes,
        }
        test = _test(load, wanted, goodput, plot)
        _run(test, url, api_key, model, plot, results)


def _test(
    load: dict[str, Any], wanted: dict[str, Any], goodput: str | None, plot: Path | None
) -> "LoadTest":
    """Raises ValueError, or ImportError without the packages that clients and figures need."""
    try:
        from gossamer.server.load import figures
        from gossamer.server.load.schedule import Load
        from gossamer.server.load.sweep import LoadTest
    except ImportError as error:
        raise ImportError(f"this needs {error.name}: pip install 'gossamer[serve]'") from None
    if plot is not None:
        figures.check_plot(plot)
    bounds = None if goodput is None else Bounds.parse(goodput, "--goodput")
    return LoadTest(load=Load(**load), bounds=bounds, **wanted)


def _run(
    test: "LoadTest",
    url: str,
    api_key: str | None,
    model: str | None,
    plot: Path | None,
    results: Path | None,
) -> None:
    """Send, print and write. Exit code 1 when a request failed."""
    from gossamer.server.load import figures, measures, report
    from gossamer.server.load.sweep import warnings
    from gossamer.server.load.target import probe

    records: list[dict[str, Any]] = []
    for found, seen in test.run(probe(url, api_key, model)):
        records.append(found)
        for line in warnings(found, seen):
            typer.echo(f"warning: {line}", err=True)
        at = "" if len(test.rates) == 1 else f"{found['load']['rate']:g} requests/s: "
        typer.echo(at + report.summary(found))
        if results is not None:  # at once: a later rate may fail
            measures.write(found, results)
    several = len(records) > 1
    o.stdout_console().print(report.rates_table(records) if several else report.table(records[0]))
    if plot is not None and several:
        figures.plot_rates(records, plot)
    elif plot is not None:
        figures.plot(records[0], seen, plot)
    for path in (results and results / measures.FILE, plot):
        if path is not None:
            typer.echo(f"written to {path}")
    if any(found["errors"] for found in records):
        raise typer.Exit(1)

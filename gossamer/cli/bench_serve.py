"""`gossamer bench serve`: clients of a server that is running."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gossamer.cli import options as o


def serve(
    url: Annotated[str, typer.Argument(help="of the server")] = "http://127.0.0.1:8000",
    requests: Annotated[int, typer.Option(help="how many")] = 100,
    rate: Annotated[
        float | None, typer.Option(help="requests per second, at random times; default: at once")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="open requests at most")] = 32,
    inputs: Annotated[str, typer.Option("--input", help="prompt tokens: MIN,MAX")] = "100,500",
    outputs: Annotated[str, typer.Option("--output", help="new tokens: MIN,MAX")] = "20,100",
    prefix: Annotated[int, typer.Option(help="tokens that begin each prompt, beside these")] = 0,
    prefixes: Annotated[int, typer.Option(help="how many different ones")] = 1,
    leaving: Annotated[float, typer.Option(help="share of clients that hang up")] = 0.0,
    kv: Annotated[
        str | None, typer.Option(metavar="SPEC", help="one of the server's caches")
    ] = None,
    seed: Annotated[int, typer.Option(help="of lengths, tokens and times")] = 0,
    api_key: Annotated[
        str | None, typer.Option(envvar="GOSSAMER_API_KEY", show_envvar=True, help="of the server")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="figure: .png or .svg")] = None,
    results: o.Results = None,
) -> None:
    """Load a server: time to first token, time between tokens, throughput, errors."""
    with o.one_line_errors():
        measure(
            url,
            requests=requests,
            rate=rate,
            concurrency=concurrency,
            inputs=inputs,
            outputs=outputs,
            prefix=prefix,
            prefixes=prefixes,
            leaving=leaving,
            kv=kv,
            seed=seed,
            api_key=api_key,
            plot=plot,
            results=results,
        )


def measure(
    url: str,
    *,
    inputs: str,
    outputs: str,
    api_key: str | None,
    plot: Path | None,
    results: Path | None,
    **load: object,
) -> None:
    """Run, print and write. Exit code 1 when a request failed."""
    # torch's and the extra's imports are for those who use this command.
    from gossamer.cli.bench_commands import bounds  # noqa: PLC0415

    try:
        from gossamer.server.load import client, report, workload  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(f"this needs {error.name}: pip install 'gossamer[serve]'") from None
    wanted = workload.Load(
        **load,  # type: ignore[arg-type]
        inputs=bounds("input", inputs),
        outputs=bounds("output", outputs),
    )
    if plot is not None:
        report.check_plot(plot)
    target = client.probe(url, api_key)
    scheduled = wanted.schedule(target.stats["vocab_size"])
    outcomes = asyncio.run(client.run(target, scheduled, wanted.concurrency, wanted.kv))
    found = report.record(target, wanted, outcomes)
    Console().print(report.table(found))
    typer.echo(report.summary(found))
    if results is not None:
        typer.echo(f"written to {report.write(found, results)}")
    if plot is not None:
        report.plot(found, outcomes, plot)
        typer.echo(f"written to {plot}")
    if found["errors"]:
        raise typer.Exit(1)

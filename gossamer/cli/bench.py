"""`gossamer bench`: how fast engines and servers are on this machine."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gossamer.cli import options as o

bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure throughput and latency.")

Inputs = Annotated[str, typer.Option("--input", help="Prompt lengths in tokens: MIN,MAX")]
Outputs = Annotated[str, typer.Option("--output", help="Output lengths in tokens: MIN,MAX")]
Fill = Annotated[
    bool, typer.Option("--fill", help="Fill the cache with random K and V; skip prefill")
]
Eager = Annotated[bool, typer.Option("--eager", help="Disable CUDA graphs")]


@bench.command()
def throughput(
    model: o.Model,
    kv: o.Caches = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Number of requests; default: 256, or what fits with --context"),
    ] = None,
    inputs: Inputs = "100,1024",
    outputs: Outputs = "100,1024",
    context: Annotated[
        int | None, typer.Option(help="Length of all prompts; runs as many as --kv-memory holds")
    ] = None,
    fill: Fill = False,
    temperature: o.Temperature = 0.6,
    seed: Annotated[int, typer.Option(help="Random seed of lengths and tokens")] = 0,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    random_weights: o.RandomWeights = False,
    eager: Eager = False,
    results: o.Results = None,
) -> None:
    """Measure offline throughput: all requests at once, in tokens per second."""
    from gossamer.workloads import bench as benches
    from gossamer.workloads.records import show

    with o.one_line_errors():
        if requests is not None:
            o.at_least("requests", requests, 1)
        if context is not None:
            o.at_least("context", context, 1)
        if fill and context is None:
            raise ValueError("--fill needs --context")
        if context is not None and requests is None and kv_memory is None:
            raise ValueError("--context needs --kv-memory or --requests")
        workload = benches.Workload(
            requests,
            o.bounds("input", inputs),
            o.bounds("output", outputs),
            context,
            fill,
            temperature,
            seed,
        )
        config = benches.BenchConfig(
            model, kv or ["dense"], dtype, device, kv_memory, calibration, random_weights, eager
        )
        show(benches.throughput(config, workload), results, config.resolved_device())


@bench.command()
def latency(
    model: o.Model,
    kv: o.Caches = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, e.g. 1,8,32")] = "1",
    context: Annotated[
        str, typer.Option(help="Context lengths in tokens, e.g. 1024,8192")
    ] = "1024",
    output: Annotated[int, typer.Option(help="Tokens to generate per sequence")] = 64,
    fill: Fill = False,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    random_weights: o.RandomWeights = False,
    eager: Eager = False,
    results: o.Results = None,
) -> None:
    """Measure time to first token and time per output token, next to the memory-bandwidth bound."""
    from gossamer.workloads import bench as benches
    from gossamer.workloads.records import show

    with o.one_line_errors():
        batches, contexts = o.numbers("batch", batch), o.numbers("context", context)
        o.at_least("output", output, 2)
        config = benches.BenchConfig(
            model, kv or ["dense"], dtype, device, kv_memory, calibration, random_weights, eager
        )
        records = benches.latency(config, batches, contexts, output, fill=fill)
        show(records, results, config.resolved_device())


@bench.command()
def serve(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the server")
    ] = "http://127.0.0.1:8000",
    requests: Annotated[int, typer.Option(help="Number of requests")] = 100,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second, as a Poisson process; default: all at once"),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Maximum number of open requests")] = 32,
    inputs: Inputs = "100,500",
    outputs: Outputs = "20,100",
    prefix: Annotated[
        int, typer.Option(help="Shared prefix of the prompts in tokens, on top of --input")
    ] = 0,
    prefixes: Annotated[int, typer.Option(help="Number of different prefixes")] = 1,
    leaving: Annotated[float, typer.Option(help="Share of clients that disconnect early")] = 0.0,
    kv: Annotated[
        str | None, typer.Option(metavar="SPEC", help="KV cache of the server to use")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of lengths, tokens and times")] = 0,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="GOSSAMER_API_KEY", show_envvar=True, help="API key of the server"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a figure: .png or .svg")
    ] = None,
    results: o.Results = None,
) -> None:
    """Measure a running server: time to first token, inter-token latency, throughput, errors."""
    with o.one_line_errors():
        _load_server(
            url,
            api_key,
            plot,
            results,
            requests=requests,
            rate=rate,
            concurrency=concurrency,
            inputs=o.bounds("input", inputs),
            outputs=o.bounds("output", outputs),
            prefix=prefix,
            prefixes=prefixes,
            leaving=leaving,
            kv=kv,
            seed=seed,
        )


def _load_server(
    url: str, api_key: str | None, plot: Path | None, results: Path | None, **load: object
) -> None:
    """Run, print and write. Exit code 1 when a request failed."""
    try:
        from gossamer.server.load import client, report, workload
    except ImportError as error:
        raise ImportError(f"this needs {error.name}: pip install 'gossamer[serve]'") from None
    wanted = workload.Load(**load)  # type: ignore[arg-type]
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

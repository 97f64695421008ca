"""`gossamer bench`: how fast the engine is on this machine."""

from typing import Annotated

import typer

from gossamer.cli import options as o
from gossamer.cli.bench_serve import serve

bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure throughput and latency.")
bench.command()(serve)

Fill = Annotated[
    bool, typer.Option("--fill", help="prompts are random K and V instead of computed")
]
Eager = Annotated[bool, typer.Option("--eager", help="without CUDA graphs")]


@bench.command()
def throughput(
    model: o.Model,
    kv: o.Caches = None,
    requests: Annotated[
        int | None, typer.Option(help="how many; default: 256, or what fits with --context")
    ] = None,
    inputs: Annotated[str, typer.Option("--input", help="prompt tokens: MIN,MAX")] = "100,1024",
    outputs: Annotated[str, typer.Option("--output", help="new tokens: MIN,MAX")] = "100,1024",
    context: Annotated[
        int | None, typer.Option(help="prompts of so many tokens, as many as --kv-memory holds")
    ] = None,
    fill: Fill = False,
    temperature: o.Temperature = 0.6,
    seed: Annotated[int, typer.Option(help="of lengths and tokens")] = 0,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    random_weights: o.RandomWeights = False,
    eager: Eager = False,
    results: o.Results = None,
) -> None:
    """Requests all at once, until the last one is done: tokens per second."""
    # torch._dynamo comes with the engine and takes seconds to import; `doctor` has no use for it.
    from gossamer.cli import bench_commands  # noqa: PLC0415

    with o.one_line_errors():
        options = bench_commands.Options(
            model, kv or ["dense"], dtype, device, kv_memory, calibration, random_weights, eager
        )
        bench_commands.throughput(
            options,
            bench_commands.Load(requests, inputs, outputs, context, fill, temperature, seed),
            results,
        )


@bench.command()
def latency(
    model: o.Model,
    kv: o.Caches = None,
    batch: Annotated[str, typer.Option(help="sequences at a time: 1,8,32")] = "1",
    context: Annotated[str, typer.Option(help="tokens of each: 1024,8192")] = "1024",
    output: Annotated[int, typer.Option(help="new tokens of each")] = 64,
    fill: Fill = False,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    random_weights: o.RandomWeights = False,
    eager: Eager = False,
    results: o.Results = None,
) -> None:
    """Time to the first token and per token after it, against what memory bandwidth allows."""
    # torch._dynamo comes with the engine and takes seconds to import; `doctor` has no use for it.
    from gossamer.cli import bench_commands  # noqa: PLC0415

    with o.one_line_errors():
        options = bench_commands.Options(
            model, kv or ["dense"], dtype, device, kv_memory, calibration, random_weights, eager
        )
        bench_commands.latency(options, batch, context, output, fill, results)

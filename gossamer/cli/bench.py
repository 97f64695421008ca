"""`gossamer bench`: how fast engines and servers are on this machine."""

from typing import Annotated

import typer

from gossamer.cli import options as o
from gossamer.cli.bench_serve import serve
from gossamer.workloads.named import numbers_of

bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure throughput and latency.")

Inputs = Annotated[
    str | None, typer.Option("--input", help="Prompt lengths: MIN,MAX; default: 100,1024")
]
Outputs = Annotated[
    str | None, typer.Option("--output", help="Output lengths: MIN,MAX; default: 100,1024")
]
Fill = Annotated[
    bool, typer.Option("--fill", help="Fill the cache with random K and V; skip prefill")
]


@bench.command()
def throughput(
    model: o.Model,
    kv: o.Caches = None,
    workload: o.WorkloadName = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Number of requests; default: 256, or what fits with --context"),
    ] = None,
    inputs: Inputs = None,
    outputs: Outputs = None,
    prefix: o.Prefix = None,
    prefixes: o.Prefixes = None,
    context: Annotated[
        int | None, typer.Option(help="Length of all prompts; runs as many as --kv-memory holds")
    ] = None,
    fill: Fill = False,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; default: 0.6, 0 with --workload")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of lengths and tokens")] = 0,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    weights: o.Weights = "auto",
    random_weights: o.RandomWeights = False,
    eager: o.Eager = False,
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
        if context is not None and (workload is not None or prefix is not None):
            raise ValueError("--context excludes --workload and --prefix")
        if fill and context is None:
            raise ValueError("--fill needs --context")
        if context is not None and requests is None and kv_memory is None:
            raise ValueError("--context needs --kv-memory or --requests")
        given = o.mix_given(requests, inputs, outputs, prefix, prefixes)
        if temperature is None:
            temperature = 0.6 if workload is None else 0.0
        wanted = benches.Workload(
            **numbers_of(workload, {}, given),
            context=context,
            fill=fill,
            temperature=temperature,
            seed=seed,
            name=workload,
        )
        config = benches.BenchConfig(
            model,
            kv or ["dense"],
            dtype,
            device,
            kv_memory,
            calibration,
            random_weights,
            eager,
            weights,
        )
        show(benches.throughput(config, wanted), results, config.resolved_device())


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
    weights: o.Weights = "auto",
    random_weights: o.RandomWeights = False,
    eager: o.Eager = False,
    results: o.Results = None,
) -> None:
    """Measure time to first token and time per output token, next to the memory-bandwidth bound."""
    from gossamer.workloads import bench as benches
    from gossamer.workloads.records import show

    with o.one_line_errors():
        batches, contexts = o.numbers("batch", batch), o.numbers("context", context)
        o.at_least("output", output, 2)
        config = benches.BenchConfig(
            model,
            kv or ["dense"],
            dtype,
            device,
            kv_memory,
            calibration,
            random_weights,
            eager,
            weights,
        )
        records = benches.latency(config, batches, contexts, output, fill=fill)
        show(records, results, config.resolved_device())


bench.command()(serve)

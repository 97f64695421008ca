"""`gossamer plan`: how many GPUs a rate of requests needs, with each KV cache."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gossamer.cli import options as o

if TYPE_CHECKING:
    from gossamer.planning.fleet import Demand
    from gossamer.planning.gpu import GPU

SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20}


def plan(
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Model: smollm2, a Hugging Face directory or a config.json",
            is_eager=True,  # known before --kv is looked at
        ),
    ],
    rate: Annotated[float, typer.Option(help="Requests per second, of all replicas together")],
    context: Annotated[
        str,
        typer.Option(metavar="TOKENS", help="Prompt and output of a request, e.g. 32k or 8000"),
    ] = "32k",
    output: Annotated[
        str, typer.Option("--output", metavar="TOKENS", help="How many of them are the output")
    ] = "256",
    prefix_hit: Annotated[
        float, typer.Option(help="Share of a prompt that the prefix cache has, e.g. 0.9")
    ] = 0.0,
    gpu: Annotated[str, typer.Option(help="A GPU that was measured: h200")] = "h200",
    gpu_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json", help="Another GPU, by its data sheet: scaled, not measured"
        ),
    ] = None,
    kv: o.Caches = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="GPUs of a replica; default: what needs the fewest"),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="BOUNDS",
            help="Bounds of mean latency in ms: ttft:2000,tpot:50,e2e:30000 or some of them",
        ),
    ] = None,
    utilisation: Annotated[
        float, typer.Option(help="Share of a replica's highest rate to use; the rest is headroom")
    ] = 0.8,
    max_num_seqs: Annotated[
        int, typer.Option(help="Maximum number of sequences of a replica that run at a time")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Maximum number of tokens in a step")
    ] = 8192,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Data type of weights: bfloat16 or float16")
    ] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON")] = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Plan capacity: GPUs for a rate of requests, from measured kernels and the layout's bytes."""
    from gossamer.engine.config import DTYPES
    from gossamer.models import open_model
    from gossamer.ops.checks import one_of
    from gossamer.planning.fleet import CACHES, Demand
    from gossamer.planning.memory import Limits
    from gossamer.planning.traffic import Traffic
    from gossamer.workloads.bounds import Bounds

    with o.one_line_errors():
        one_of("dtype", dtype, ("bfloat16", "float16"))
        total, out = _tokens("context", context), _tokens("output", output)
        if out >= total:
            raise ValueError(f"--output is {out}; must be below --context, {total}")
        demand = Demand(
            gpu=_gpu(gpu, gpu_file),
            model=open_model(model, random_weights=True).config,
            dtype=DTYPES[dtype],
            traffic=Traffic(total - out, out, prefix_hit),
            rate=rate,
            bounds=Bounds() if slo is None else Bounds.parse(slo, "--slo"),
            limits=Limits(max_num_seqs, max_num_batched_tokens),
            ranks=tensor_parallel_size,
            utilisation=utilisation,
        )
        _print(demand, kv or list(CACHES), as_json=as_json, as_markdown=as_markdown)


def _print(demand: "Demand", specs: list[str], *, as_json: bool, as_markdown: bool) -> None:
    from gossamer.planning import table
    from gossamer.planning.fleet import fleets

    rows = fleets(demand, specs)
    if as_json:
        typer.echo(json.dumps(table.facts(demand, rows), indent=2))
        return
    if as_markdown:
        typer.echo(table.markdown(rows) + "\n")
    else:
        o.stdout_console().print(table.rich_table(rows))
    for note in table.notes(demand, rows):
        typer.echo(f"- {note}" if as_markdown else note)


def _gpu(name: str, file: Path | None) -> "GPU":
    """Raises ValueError, OSError."""
    from gossamer.planning.gpu import load_gpu, load_gpu_file

    return load_gpu(name) if file is None else load_gpu_file(file)


def _tokens(name: str, text: str) -> int:
    """`8000`, `32k` (of 1,024) or `1m`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,12})([km]?)", text.strip().lower())
    number = int(match[1]) * SIZES[match[2]] if match else 0
    if number < 1:
        raise ValueError(f"--{name} is {text!r}; must be tokens above 0, like 8000, 32k or 1m")
    return number

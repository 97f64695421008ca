"""The server next to its engine: the same requests, once without HTTP and once from clients.

    python -m benchmarks.end_to_end.serving MODEL --workload small --clients 64

MODEL needs a config.json and a tokenizer; weights are random. The engine gets all requests at once
and computes as many at a time as there are clients. Lines are appended to --output.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.end_to_end.soak import server
from gossamer.bench.record import describe_device, revision
from gossamer.engine import LLM, SamplingParams
from gossamer.server.load.schedule import Load, ScheduledRequest
from gossamer.server.load.sweep import LoadTest, warnings
from gossamer.server.load.target import probe
from gossamer.workloads.named import numbers_of

OUTPUT = Path("benchmarks/serving/server.jsonl")
SHOWN = (
    *("output_tokens_per_second", "seconds", "completed", "errors", "client"),
    *("ttft_ms", "itl_ms", "tpot_ms"),
)


def runs(load: Load, vocab: int) -> list[list[ScheduledRequest]]:
    """The same twice, but for the tokens: there is a prefix cache."""
    return [replace(load, seed=seed).schedule(vocab) for seed in (load.seed + 1, load.seed)]


def engine_alone(
    model: str, planned: list[list[ScheduledRequest]], clients: int, **options: Any
) -> dict[str, Any]:
    """Tokens per second, and milliseconds of a step, of the last run."""
    with LLM(model, random_weights=True, max_num_seqs=clients, **options) as llm:
        for run in planned:
            steps, tokens = list[float](), 0
            for request in run:
                params = SamplingParams(temperature=0, max_tokens=request.output, ignore_eos=True)
                llm.add_request(list(request.ids), params)
            start = last = time.perf_counter()
            while llm.engine.requests:
                tokens += sum(len(delta.token_ids) for delta in llm.step())
                now = time.perf_counter()
                steps.append(1e3 * (now - last))
                last = now
    return {
        "output_tokens_per_second": tokens / (last - start),
        "seconds": last - start,
        "step_ms": {f"p{p}": float(np.percentile(steps, p)) for p in (50, 90, 99)},
    }


def behind_server(
    model: str, load: Load, processes: int, options: dict[str, Any]
) -> dict[str, Any]:
    """What clients see, after as many requests with other tokens."""
    flags = [f for name, x in options.items() for f in (f"--{name.replace('_', '-')}", str(x))]
    test = LoadTest(load=load, warm_up=load.requests, processes=processes)
    with server(model, "--random-weights", *flags) as (url, _, _):
        ((found, seen),) = test.run(probe(url))
    for line in warnings(found, seen):
        typer.echo(f"warning: {line}", err=True)
    return {name: found[name] for name in SHOWN}


def main(
    model: Annotated[str, typer.Argument(help="a folder with a config.json and a tokenizer")],
    workload: Annotated[str, typer.Option(help="mixed, small, chat or long")] = "small",
    clients: Annotated[int, typer.Option(help="requests that are open at a time")] = 64,
    processes: Annotated[int, typer.Option(help="of clients: one has enough of 64 streams")] = 8,
    requests: Annotated[int | None, typer.Option(help="default: the workload's")] = None,
    kv: Annotated[str, typer.Option(help="the cache")] = "dense",
    kv_memory: Annotated[str, typer.Option(help="of the cache")] = "30GB",
    max_model_len: Annotated[int, typer.Option(help="the longest sequence")] = 4096,
    output: Annotated[Path, typer.Option("-o", help="file that lines are appended to")] = OUTPUT,
) -> None:
    """Measure both; a line for each."""
    given = {} if requests is None else {"requests": requests}
    load = Load(**numbers_of(workload, {}, given), concurrency=clients, workload=workload)
    options = {"kv": kv, "kv_memory": kv_memory, "max_model_len": max_model_len}
    about = {
        "device": describe_device("cuda" if torch.cuda.is_available() else "cpu"),
        "revision": revision(),
        "model": Path(model).name,
        "workload": workload,
        "requests": load.requests,
        "clients": clients,
        "kv": kv,
    }
    served = behind_server(model, load, processes, options)
    _write(output, about | {"what": "server", **served})
    vocab = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    alone = engine_alone(model, runs(load, vocab), clients, **options)
    _write(output, about | {"what": "engine", **alone})
    share = served["output_tokens_per_second"] / alone["output_tokens_per_second"]
    typer.echo(f"the server has {share:.2f}x of the engine's throughput")


def _write(output: Path, line: dict[str, Any]) -> None:
    typer.echo(json.dumps(line))
    with output.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    typer.run(main)

"""The engine on this machine: against transformers, against the floor, at equal KV memory.

On a GPU with the dimensions of Llama 3 8B and random weights; on a CPU with SmolLM2-135M.
"""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.peers.engine import generate, peer_model, peer_record
from gossamer.bench import Record, WrongResultError
from gossamer.bench.suite import RESULTS, PeerUnavailableError
from gossamer.cli.options import one_line_errors
from gossamer.engine import LLM
from gossamer.kv import KVConfig
from gossamer.workloads.bench import BenchConfig, Workload, latency, throughput
from gossamer.workloads.measuring import equal_requests, measure, warm_up_requests
from gossamer.workloads.records import decode_record, show
from gossamer.workloads.requests import Request
from gossamer.workloads.sizes import memory_for

TEXT = Path(__file__).parents[1] / "data/wikitext2-test-excerpt.txt"
LLAMA = Path(__file__).parents[1] / "models/llama-3-8b"


@dataclass(frozen=True)
class Cases:
    """What to measure on a kind of machine. modes: of transformers."""

    model: str
    dtype: str
    random_weights: bool
    parts: tuple[str, ...]
    caches: tuple[str, ...]
    modes: tuple[str, ...]
    batches: tuple[int, ...]
    context: int
    long_batches: tuple[int, ...]
    long_context: int
    memory: str
    memory_context: int
    output: int = 64


CASES = {
    "cpu": Cases(
        model="smollm2",
        dtype="float32",
        random_weights=False,
        parts=("transformers", "context"),
        caches=("dense", "sparse:k=32,v=32"),
        modes=("transformers",),
        batches=(1, 8),
        context=128,
        long_batches=(1, 8),
        long_context=8128,
        memory="2GB",
        memory_context=8128,
    ),
    "cuda": Cases(
        model=str(LLAMA),
        dtype="bfloat16",
        random_weights=True,
        parts=("context", "memory", "transformers"),
        caches=("dense", "sparse:k=40,v=40"),
        modes=("transformers", "transformers static"),
        batches=(32,),
        context=2048,  # transformers computes all prompts at once
        long_batches=(32,),
        long_context=8192,
        memory="40GB",
        memory_context=32768,
    ),
}
QUICK: dict[str, Any] = {
    "batches": (1, 2),
    "context": 64,
    "long_batches": (1, 2),
    "long_context": 128,
    "memory": "8MB",
    "memory_context": 256,
    "output": 16,
}


@dataclass(frozen=True)
class Ours:
    """What the engine did with some prompts."""

    record: Record
    prompts: list[list[int]]
    tokens: list[list[int]]


def against_transformers(cases: Cases, config: BenchConfig) -> list[Record]:
    """Decode steps of both at the same shapes; greedy tokens must agree in float32."""
    dtype, device, _ = config.resolved()
    ours = _engine_runs(cases, config)
    gc.collect()  # the engine's memory, for the model of transformers
    torch.cuda.empty_cache()
    model = peer_model(cases.model, dtype, device, random_weights=cases.random_weights)
    generate(model, [ours[0].prompts[0][:32]], 2, "transformers")
    records = []
    for run in ours:
        records.append(run.record)
        for mode in cases.modes:
            try:
                found = generate(model, run.prompts, cases.output, mode)
            except PeerUnavailableError as error:
                warnings.warn(f"no {mode}: {error}", stacklevel=2)
                continue
            equal = _equal_share(run.tokens, found.tokens, strict=dtype is torch.float32)
            there = peer_record(run.record, mode, found, dtype)
            records.append(replace(there, facts={**there.facts, "equal_tokens": equal}))
    return records


def _engine_runs(cases: Cases, config: BenchConfig) -> list[Ours]:
    dtype, _, shape = config.resolved()
    longest, most = cases.context + cases.output, max(cases.batches)
    memory = memory_for(KVConfig.of("dense", dtype), shape, dtype, longest, most)
    runs = []
    with config.load(
        "dense", kv_memory=memory, max_model_len=longest, max_num_seqs=most + 1
    ) as llm:
        for batch in cases.batches:
            requests = _requests(cases, llm, batch)
            warm_up_requests(llm, requests)
            found = measure(llm, requests)
            record = decode_record(llm.engine, "dense", found, cases.context)
            runs.append(Ours(record, [list(r.ids) for r in requests], found.tokens))
    return runs


def _requests(cases: Cases, llm: LLM, batch: int) -> list[Request]:
    """Pieces of a text where there is a tokenizer for it, since random tokens lead nowhere."""
    if llm.tokenizer is None or cases.random_weights:
        vocab = llm.engine.built.source.config.vocab_size
        return equal_requests(vocab, batch, cases.context, cases.output)
    ids = llm.tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
    pieces = [ids[i * cases.context : (i + 1) * cases.context] for i in range(batch)]
    return [Request(tuple(piece), cases.output) for piece in pieces]


def _equal_share(ours: list[list[int]], theirs: list[list[int]], *, strict: bool) -> float:
    """Share of tokens before the first that differs. Ties break either way in 16 bits."""
    same = 0
    for a, b in zip(ours, theirs, strict=True):
        differing = (i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        same += next(differing, len(a))
    share = same / sum(map(len, ours))
    if strict and share < 1:
        raise WrongResultError(f"{share:.1%} of greedy tokens are those of transformers; must all")
    return share


def at_long_context(cases: Cases, config: BenchConfig) -> list[Record]:
    """Decode steps of each cache against the floor, on a synthetic context."""
    return latency(config, cases.long_batches, (cases.long_context,), cases.output, fill=True)


def at_equal_memory(cases: Cases, config: BenchConfig) -> list[Record]:
    """As many sequences as fit the same KV memory, on a synthetic context."""
    outputs = (cases.output, cases.output)
    workload = Workload(outputs=outputs, context=cases.memory_context, fill=True, temperature=0.0)
    return throughput(replace(config, kv_memory=cases.memory), workload)


PARTS: dict[str, Callable[[Cases, BenchConfig], list[Record]]] = {
    "transformers": against_transformers,
    "context": at_long_context,
    "memory": at_equal_memory,
}


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda if there is one")] = "",
    part: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(PARTS)}; repeatable, default: by device")
    ] = None,
    model: Annotated[str | None, typer.Option(help="another one than the device's")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="small sizes, nothing written")] = False,
    results: Annotated[Path | None, typer.Option(help=f"folder; default: {RESULTS}")] = None,
) -> None:
    """Measure the engine; records go to engine_*.jsonl."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with one_line_errors():
        if device not in CASES or set(part or ()) - set(PARTS):
            raise ValueError(
                f"device, part are {device!r}, {part}; must be {list(CASES)}, {list(PARTS)}"
            )
        cases = replace(CASES[device], **(QUICK if quick else {}))
        cases = replace(cases, model=model) if model else cases
        config = BenchConfig(
            cases.model,
            list(cases.caches),
            cases.dtype,
            device,
            random_weights=cases.random_weights,
        )
        folder = results if results or quick else RESULTS
        for name in part or cases.parts:
            # Written at once: time on a GPU may be over before the next part is.
            show(PARTS[name](cases, config), folder, device)


if __name__ == "__main__":
    typer.run(main)

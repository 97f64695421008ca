"""The engine on this machine: against transformers, against the floor, at equal KV memory.

On a GPU with the dimensions of Llama 3 8B and random weights; on a CPU with SmolLM2-135M.
"""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.engine_peers import generate, peer_model, peer_record
from benchmarks.engine_plans import PLANS, QUICK, Plan
from gossamer.bench import Record, WrongResultError
from gossamer.bench.suite import RESULTS, PeerUnavailableError
from gossamer.cli.options import one_line_errors
from gossamer.engine import LLM
from gossamer.engine.kv_cache import parse_kv
from gossamer.workloads.bench import BenchConfig, Workload, latency, throughput
from gossamer.workloads.measuring import Request, equal_requests, measure, warm_up_requests
from gossamer.workloads.records import decode_record, show
from gossamer.workloads.sizes import memory_for

TEXT = Path(__file__).parent / "data/wikitext2-test-excerpt.txt"


@dataclass(frozen=True)
class Ours:
    """What the engine did with some prompts."""

    record: Record
    prompts: list[list[int]]
    tokens: list[list[int]]


def against_transformers(plan: Plan, config: BenchConfig) -> list[Record]:
    """Decode steps of both at the same shapes; greedy tokens must agree in float32."""
    dtype, device, _ = config.resolved()
    ours = _engine_runs(plan, config)
    gc.collect()  # the engine's memory, for the model of transformers
    torch.cuda.empty_cache()
    model = peer_model(plan.model, dtype, device, random_weights=plan.random_weights)
    generate(model, [ours[0].prompts[0][:32]], 2, "transformers")
    records = []
    for run in ours:
        records.append(run.record)
        for mode in plan.modes:
            try:
                found = generate(model, run.prompts, plan.output, mode)
            except PeerUnavailableError as error:
                warnings.warn(f"no {mode}: {error}", stacklevel=2)
                continue
            equal = _equal_share(run.tokens, found.tokens, strict=dtype is torch.float32)
            there = peer_record(run.record, mode, found, dtype)
            records.append(replace(there, facts={**there.facts, "equal_tokens": equal}))
    return records


def _engine_runs(plan: Plan, config: BenchConfig) -> list[Ours]:
    dtype, _, shape = config.resolved()
    longest, most = plan.context + plan.output, max(plan.batches)
    memory = memory_for(parse_kv("dense", dtype), shape, dtype, longest, most)
    runs = []
    with config.load(
        "dense", kv_memory=memory, max_model_len=longest, max_num_seqs=most + 1
    ) as llm:
        for batch in plan.batches:
            requests = _requests(plan, llm, batch)
            warm_up_requests(llm, requests)
            found = measure(llm, requests)
            record = decode_record(llm.engine, "dense", found, plan.context)
            runs.append(Ours(record, [list(r.ids) for r in requests], found.tokens))
    return runs


def _requests(plan: Plan, llm: LLM, batch: int) -> list[Request]:
    """Pieces of a text where there is a tokenizer for it, since random tokens lead nowhere."""
    if llm.tokenizer is None or plan.random_weights:
        vocab = llm.engine.built.source.config.vocab_size
        return equal_requests(vocab, batch, plan.context, plan.output)
    ids = llm.tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
    pieces = [ids[i * plan.context : (i + 1) * plan.context] for i in range(batch)]
    return [Request(tuple(piece), plan.output) for piece in pieces]


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


def at_long_context(plan: Plan, config: BenchConfig) -> list[Record]:
    """Decode steps of each cache against the floor, on a synthetic context."""
    return latency(config, plan.long_batches, (plan.long_context,), plan.output, fill=True)


def at_equal_memory(plan: Plan, config: BenchConfig) -> list[Record]:
    """As many sequences as fit the same KV memory, on a synthetic context."""
    outputs = (plan.output, plan.output)
    workload = Workload(outputs=outputs, context=plan.memory_context, fill=True, temperature=0.0)
    return throughput(replace(config, kv_memory=plan.memory), workload)


PARTS: dict[str, Callable[[Plan, BenchConfig], list[Record]]] = {
    "transformers": against_transformers,
    "context": at_long_context,
    "memory": at_equal_memory,
}


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda; default: cuda if there is one")] = "",
    part: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(PARTS)}; repeatable, default: by device")
    ] = None,
    model: Annotated[str | None, typer.Option(help="another one than planned")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="small sizes, nothing written")] = False,
    results: Annotated[Path | None, typer.Option(help=f"folder; default: {RESULTS}")] = None,
) -> None:
    """Measure the engine; records go to engine_*.jsonl."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with one_line_errors():
        if device not in PLANS or set(part or ()) - set(PARTS):
            raise ValueError(
                f"device, part are {device!r}, {part}; must be {list(PLANS)}, {list(PARTS)}"
            )
        plan = replace(PLANS[device], **(QUICK if quick else {}))
        plan = replace(plan, model=model) if model else plan
        config = BenchConfig(
            plan.model,
            list(plan.caches),
            plan.dtype,
            device,
            random_weights=plan.random_weights,
        )
        folder = results if results or quick else RESULTS
        for name in part or plan.parts:
            # Written at once: time on a GPU may be over before the next part is.
            show(PARTS[name](plan, config), folder, device)


if __name__ == "__main__":
    typer.run(main)

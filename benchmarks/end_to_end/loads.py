"""Offline loads on one engine, each twice: what the first users wait for, and the steady state.

    python -m benchmarks.end_to_end.loads benchmarks/models/llama-3-8b --kv dense mixed long 64x4000

Random weights and tokens, greedy, no prefix cache, bfloat16. 64x4000 is 64 equal sequences of 4,000
tokens. Lines are appended to --output.
"""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gossamer.bench.record import describe_device, revision
from gossamer.engine import LLM, SamplingParams

VOCABULARY = 40_000
OUTPUT = Path("benchmarks/serving/loads.jsonl")
Range = tuple[int, int]


@dataclass(frozen=True)
class Load:
    """All requests at once; lengths are drawn from ranges (least, most)."""

    requests: int
    inputs: Range
    outputs: Range


LOADS = {
    "mixed": Load(256, (200, 2000), (64, 256)),
    "small": Load(400, (100, 1000), (50, 200)),
    "chat": Load(512, (50, 800), (200, 500)),
}
EQUAL = {"decode": (32, 2048), "long": (32, 8000)}  # sequences of so many tokens
NAMES = ", ".join((*LOADS, *EQUAL))
SHORT, LONG = 8, 72  # outputs of two runs, whose difference is decode steps alone


def equal_sequences(work: str) -> tuple[int, int] | None:
    """How many sequences of how many tokens: of a name of EQUAL, or of 64x4000."""
    count, _, context = work.partition("x")
    if count.isdecimal() and context.isdecimal():
        return int(count), int(context)
    return EQUAL.get(work)


def drawn(load: Load) -> tuple[list[list[int]], list[int]]:
    """Prompts, and how many tokens come out of each."""
    prompts = [
        [random.randrange(VOCABULARY) for _ in range(random.randint(*load.inputs))]
        for _ in range(load.requests)
    ]
    return prompts, [random.randint(*load.outputs) for _ in prompts]


def timed(llm: LLM, load: Load) -> tuple[float, int, int]:
    """Seconds, tokens that came out, and all tokens."""
    prompts, outputs = drawn(load)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
    start = time.perf_counter()
    done = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    out = sum(len(output.outputs[0].token_ids) for output in done)
    return seconds, out, out + sum(map(len, prompts))


def measured(llm: LLM, work: str) -> dict[str, float]:
    if work in LOADS:
        seconds, out, everything = timed(llm, LOADS[work])
        return {
            "seconds": round(seconds, 3),
            "output_tps": round(out / seconds),
            "total_tps": round(everything / seconds),
        }
    equal = equal_sequences(work)
    assert equal is not None
    count, context = equal
    loads = (Load(count, (context, context), (n, n)) for n in (SHORT, LONG))
    short, long = (timed(llm, load)[0] for load in loads)
    step = (long - short) / (LONG - SHORT)
    tps = count * context / (short - (SHORT - 1) * step)
    return {"step_ms": round(1e3 * step, 3), "prefill_tps": round(tps)}


def lines(model: Path, kv: str, works: list[str], options: dict[str, Any]) -> Iterator[Any]:
    start = time.perf_counter()
    with LLM(
        str(model), kv=kv, random_weights=True, dtype="bfloat16", prefix_caching=False, **options
    ) as llm:
        llm.generate([[1, 2, 3]], [SamplingParams(max_tokens=1)])
        yield {"work": "start", "first_token_s": round(time.perf_counter() - start, 1)}
        for work in works:
            for run in ("first", "second"):
                random.seed(1)
                yield {"work": work, "run": run, **measured(llm, work)}


def main(
    model: Annotated[Path, typer.Argument(help="a folder with a config.json")],
    works: Annotated[list[str], typer.Argument(help=f"{NAMES} or 64x4000")],
    kv: Annotated[str, typer.Option(help="the cache")] = "dense",
    kv_memory: Annotated[str, typer.Option(help="of the cache")] = "90GB",
    max_model_len: Annotated[int, typer.Option(help="the longest sequence")] = 8192,
    output: Annotated[Path, typer.Option("-o", help="file that lines are appended to")] = OUTPUT,
) -> None:
    """Measure; a line for each run."""
    if unknown := [work for work in works if work not in LOADS and not equal_sequences(work)]:
        raise typer.BadParameter(f"{unknown}; must be of {NAMES} or like 64x4000")
    options = {"kv_memory": kv_memory, "max_model_len": max_model_len}
    device = describe_device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"device": device, "revision": revision(), "model": model.name, "kv": kv}
    with output.open("a") as file:
        for line in lines(model, kv, works, options):
            text = json.dumps(about | line)
            typer.echo(text)
            file.write(text + "\n")


if __name__ == "__main__":
    typer.run(main)

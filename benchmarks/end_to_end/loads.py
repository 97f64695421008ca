"""Offline loads on one engine, each twice: what the first users wait for, and the steady state.

    python -m benchmarks.end_to_end.loads benchmarks/models/llama-3-8b --kv dense mixed long 64x4000

Random weights and tokens, greedy, no prefix cache, bfloat16. 64x4000 is 64 equal sequences of 4,000
tokens. Lines are appended to --output. `--engine vllm` runs the same on vLLM, where it is there.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.peers.vllm import vllm_engine, vllm_version
from gossamer.bench.record import describe_device, revision

VOCABULARY = 40_000
FOLDER = Path("benchmarks/serving")
OUTPUT, VLLM_OUTPUT = FOLDER / "loads.jsonl", FOLDER / "loads_vllm.jsonl"
Range = tuple[int, int]
# Of prompts and of how many tokens are to follow each: how many came out.
Generate = Callable[[list[list[int]], list[int]], int]


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


@contextmanager
def gossamer_engine(model: Path, kv: str, **options: Any) -> Iterator[Generate]:
    from gossamer.engine import LLM, SamplingParams  # noqa: PLC0415 - not beside another engine

    def generate(prompts: list[list[int]], outputs: list[int]) -> int:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
        return sum(len(done.outputs[0].token_ids) for done in llm.generate(prompts, params))

    with LLM(
        str(model), kv=kv, random_weights=True, dtype="bfloat16", prefix_caching=False, **options
    ) as llm:
        yield generate


def timed(generate: Generate, load: Load) -> tuple[float, int, int]:
    """Seconds, tokens that came out, and all tokens."""
    prompts, outputs = drawn(load)
    start = time.perf_counter()
    out = generate(prompts, outputs)
    seconds = time.perf_counter() - start
    return seconds, out, out + sum(map(len, prompts))


def measured(generate: Generate, work: str) -> dict[str, float]:
    if work in LOADS:
        seconds, out, everything = timed(generate, LOADS[work])
        return {
            "seconds": round(seconds, 3),
            "output_tps": round(out / seconds),
            "total_tps": round(everything / seconds),
        }
    equal = equal_sequences(work)
    assert equal is not None
    count, context = equal
    loads = (Load(count, (context, context), (n, n)) for n in (SHORT, LONG))
    short, long = (timed(generate, load)[0] for load in loads)
    step = (long - short) / (LONG - SHORT)
    tps = count * context / (short - (SHORT - 1) * step)
    return {"step_ms": round(1e3 * step, 3), "prefill_tps": round(tps)}


def lines(engine: AbstractContextManager[Generate], works: list[str]) -> Iterator[dict[str, Any]]:
    start = time.perf_counter()
    with engine as generate:
        generate([[1, 2, 3]], [1])
        yield {"work": "start", "first_token_s": round(time.perf_counter() - start, 1)}
        for work in works:
            for run in ("first", "second"):
                random.seed(1)
                yield {"work": work, "run": run, **measured(generate, work)}


def main(
    model: Annotated[Path, typer.Argument(help="a folder with a config.json")],
    works: Annotated[list[str], typer.Argument(help=f"{NAMES} or 64x4000")],
    kv: Annotated[str, typer.Option(help="the cache")] = "dense",
    kv_memory: Annotated[str, typer.Option(help="of the cache")] = "90GB",
    max_model_len: Annotated[int, typer.Option(help="the longest sequence")] = 8192,
    engine: Annotated[str, typer.Option(help="gossamer or vllm")] = "gossamer",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="file that lines are appended to")
    ] = None,
) -> None:
    """Measure; a line for each run."""
    if unknown := [work for work in works if work not in LOADS and not equal_sequences(work)]:
        raise typer.BadParameter(f"{unknown}; must be of {NAMES} or like 64x4000")
    if engine not in ("gossamer", "vllm"):
        raise typer.BadParameter(f"engine is {engine!r}; must be gossamer or vllm")
    device = describe_device("cuda" if torch.cuda.is_available() else "cpu")
    about = {"device": device, "revision": revision(), "model": model.name, "kv": kv}
    about["torch"] = torch.__version__
    if engine == "vllm":
        about |= {"revision": "", "engine": f"vllm {vllm_version()}"}
        run = vllm_engine(model, kv, max_model_len)
    else:
        run = gossamer_engine(model, kv, kv_memory=kv_memory, max_model_len=max_model_len)
    output = output or (VLLM_OUTPUT if engine == "vllm" else OUTPUT)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        for line in lines(run, works):
            text = json.dumps(about | line)
            typer.echo(text)
            file.write(text + "\n")
            file.flush()  # what was measured stays, if a later load runs out of time


if __name__ == "__main__":
    typer.run(main)

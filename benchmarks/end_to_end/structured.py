"""What grammars cost: a batch with one for each sequence, and the same batch without.

    python -m benchmarks.end_to_end.structured                  # on a CPU, SmolLM2
    python -m benchmarks.end_to_end.structured --device cuda    # about a minute a run

The two take turns; no output ends before the others. A record for each, of each run, in
structured.jsonl. Two calls one after the other are a pair; ratio is the median over pairs of tokens
per second with over those without (ratio_low, ratio_high: its 10th and 90th percentile),
ratio_of_medians that of the medians of each side, which other processes of a shared machine disturb
more, and cpu_ratio the median over pairs of processor time, which they disturb least. What a timed
call wrote is checked against its grammar.
"""

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.end_to_end.random_schemas import schemas
from gossamer.bench import Measurement, Record, Timing, copy_bandwidth, write_records
from gossamer.bench.record import device_folder
from gossamer.engine import LLM, SamplingParams, StructuredOutputs
from gossamer.models import ModelConfig, Source, open_model
from gossamer.models.random import RandomSource

OP = "structured"
RESULTS = Path(__file__).parents[1] / "results"
LLAMA = Path(__file__).parents[1] / "models/llama-3-8b"
TEXT = Path(__file__).parents[1] / "data/wikitext2-test-excerpt.txt"
ROUNDS, RUNS = 12, 3
# device: batches, and new tokens of each sequence
SIZES = {"cpu": ((8,), 24), "cuda": ((32, 128), 128)}
MANY = 1000  # objects in a list, more than there are tokens: no output ends


@dataclass(frozen=True)
class Borrowed:
    """A source with the tokenizer of another: a grammar needs one, and random weights have none."""

    base: RandomSource
    lender: Source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    @property
    def config(self) -> ModelConfig:
        return replace(self.base.config, eos_ids=self.lender.config.eos_ids)

    def tokenizer(self) -> Any:
        return self.lender.tokenizer()


def model_of(device: str) -> Any:
    if device == "cpu":
        return open_model("smollm2")
    random_8b = open_model(LLAMA, random_weights=True)
    assert isinstance(random_8b, RandomSource)
    return Borrowed(random_8b, open_model("smollm2"))


def requests(
    llm: LLM, batch: int, tokens: int
) -> tuple[list[list[int]], list[SamplingParams], list[SamplingParams]]:
    """Prompts, and params with a grammar each and without."""
    chance, text = random.Random(batch), TEXT.read_text()
    starts = [chance.randrange(len(text) // 2) for _ in range(batch)]
    prompts = [llm.tokenizer(text[at : at + 400])["input_ids"][:16] for at in starts]
    free = [
        SamplingParams(temperature=1, seed=seed, max_tokens=tokens, ignore_eos=True)
        for seed in range(batch)
    ]
    held = [
        replace(params, ignore_eos=False, structured_outputs=long_list(schema))
        for schema, params in zip(schemas(batch), free, strict=True)
    ]
    return prompts, held, free


def long_list(schema: dict[str, Any]) -> StructuredOutputs:
    """Of objects of a schema; each sequence has one of its own."""
    whole: dict[str, Any] = {"type": "array", "minItems": MANY, "maxItems": MANY, "items": schema}
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    return StructuredOutputs(json=whole)


def timed(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> tuple[float, float]:
    """Seconds of the batch, and of the processor.

    Raises RuntimeError for an output that is not what was asked for.
    """
    start, worked = time.perf_counter(), time.process_time()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - start, time.process_time() - worked
    for request, its in zip(outputs, params, strict=True):
        [output] = request.outputs
        if len(output.token_ids) != its.max_tokens:
            raise RuntimeError(f"{output.finish_reason} after {len(output.token_ids)} tokens")
        if its.structured_outputs is not None:
            matcher = llm.engine.grammars.matcher(its.structured_outputs)
            for token in output.token_ids:
                matcher.take(token, ends=False)
            if matcher.error is not None:
                raise RuntimeError(f"{matcher.error}: {output.text!r}")
    return seconds


def measured(llm: LLM, device: str, kv: str, batch: int, tokens: int, run: int) -> list[Record]:
    prompts, held, free = requests(llm, batch, tokens)
    start = time.perf_counter()
    timed(llm, prompts, held)  # compiles the grammars, and prompts are cached from now on
    first = time.perf_counter() - start
    timed(llm, prompts, free)
    seconds: dict[str, list[tuple[float, float]]] = {"grammars": [], "free": []}
    for i in range(ROUNDS):
        pairs = [("grammars", held), ("free", free)]
        for name, params in pairs if i % 2 else reversed(pairs):
            seconds[name].append(timed(llm, prompts, params))
    ratios = ratios_of(np.array(seconds["grammars"]), np.array(seconds["free"]))
    typer.echo(
        f"run {run}, {batch} x {tokens}: of the throughput without grammars "
        + ", ".join(f"{name} {value:.3f}" for name, value in ratios.items())
    )
    built, records = llm.engine.built, []
    for name, both in seconds.items():
        found = [wall for wall, _ in both]
        low, median, high = (1e3 * v for v in np.quantile(found, (0.1, 0.5, 0.9)))
        facts = {"tokens_per_second": 1e3 * batch * tokens / median}
        facts |= ratios
        record = Record.of(
            Measurement(Timing(median, low, high, median, len(found)), 0.0, 0.0),
            op=OP,
            backend="gossamer",
            shape=[batch, tokens],
            dtype=built.dtype,
            variant=f"{built.source.name}, {kv}, {name}, run {run}",
            bytes=0,
            flops=0,
            ceiling_gbps=copy_bandwidth(device),
            device=device,
            facts=facts | ({"first_s": first} if name == "grammars" else {}),
        )
        records.append(record)
        typer.echo(f"  {name}: {median:.0f} ms, {facts['tokens_per_second']:,.1f} tokens/s")
    return records


def ratios_of(held: NDArray[np.float64], free: NDArray[np.float64]) -> dict[str, float]:
    """Seconds [pairs, (wall, processor)] as ratios of throughput; see the top of this file."""
    pairs = free / held
    low, median, high = np.quantile(pairs[:, 0], (0.1, 0.5, 0.9))
    medians = np.median(free[:, 0]) / np.median(held[:, 0])
    named = {"ratio": median, "ratio_low": low, "ratio_high": high, "ratio_of_medians": medians}
    named["cpu_ratio"] = np.median(pairs[:, 1])
    return {name: float(value) for name, value in named.items()}


def throughput(device: str, kv: str, runs: int, results: Path) -> None:
    batches, tokens = SIZES[device]
    records = []
    memory = {"kv_memory": "1GB"} if device == "cpu" else {}
    with LLM(model_of(device), kv=kv, device=device, max_model_len=2048, **memory) as llm:
        for run in range(1, runs + 1):
            for batch in batches:
                records += measured(llm, device, kv, batch, tokens, run)
    write_records(records, results / device_folder(device) / f"{OP}.jsonl")


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    kv: Annotated[str, typer.Option(help="KV cache")] = "dense",
    runs: Annotated[int, typer.Option(help="one after the other")] = RUNS,
    results: Annotated[Path, typer.Option(help="folder for the result file")] = RESULTS,
) -> None:
    """Measure what grammars cost."""
    throughput(device, kv, runs, results)


if __name__ == "__main__":
    typer.run(main)

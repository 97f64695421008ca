"""What LoRA adapters cost: steps of the model alone, of one adapter, of several in one batch.

    python -m benchmarks.end_to_end.lora --device cpu --results benchmarks/serving

`merged` is an engine whose weights have the first adapter in them. Kinds take turns, round by
round, so that a busy machine slows all of them. Before anything is timed, log probabilities of a
prompt must be those of the merged weights for the first adapter, and for all of them those that
each has alone. A line of JSON for each batch size and kind: a decode step, and a prompt of 512
tokens (of up to 4 in a batch), each by the median of the rounds and by the least disturbed one.
"""

import json
import math
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

from gossamer.bench.record import revision
from gossamer.engine import LLM, SamplingParams
from gossamer.models import Adapter
from gossamer.models.adapter import MODULES, Pair
from gossamer.models.config import ModelConfig
from gossamer.models.layout import layer_name, layer_shapes

LLAMA = Path(__file__).parents[1] / "models/llama-3-8b"
STEPS, PROMPT = 16, 512  # decode steps of a round; tokens of each of its prompts
STRENGTH = 0.2 * 0.02  # standard deviation of b @ a; that of random weights is 0.02
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}  # of log probabilities
BATCHES = {"cpu": "1,8", "cuda": "1,8,64,256"}


def random_adapter(config: ModelConfig, rank: int, seed: int) -> Adapter:
    """Of all modules."""
    generator, shapes = torch.Generator().manual_seed(seed), layer_shapes(config)
    pairs = {}
    for layer in range(config.layers):
        for part in MODULES:
            out, into = shapes[f"{part}.weight"]
            a = torch.randn(rank, into, generator=generator) / math.sqrt(into)
            b = torch.randn(out, rank, generator=generator) * STRENGTH * math.sqrt(into / rank)
            pairs[layer_name(layer, part)] = Pair(a, b)
    return Adapter(pairs, seed.to_bytes(16), rank)


@torch.inference_mode()
def merge(llm: LLM) -> None:
    """The adapter in slot 0 goes into the weights."""
    runner = llm.engine.built.runner
    bank = runner.adapters.bank
    assert bank is not None, "it has an adapter"
    for weights, gemms in zip(runner.decoder.weights.layers, bank.layers, strict=True):
        wholes = (weights.qkv, weights.o, weights.gate_up, weights.down)
        for whole, slots in zip(wholes, gemms, strict=True):
            assert isinstance(whole, torch.Tensor), "weights are floats"
            whole.add_((slots.b[:, 0].double() @ slots.a[0].double()).to(whole))


def scores(llm: LLM, names: list[str | None]) -> torch.Tensor:
    """Log probabilities of a prompt's tokens, for each of the adapters in one batch."""
    prompt = [3 + 7 * i % 1000 for i in range(64)]
    params = SamplingParams(max_tokens=1, prompt_logprobs=True)
    outputs = llm.generate([prompt] * len(names), params, lora=names)
    return torch.tensor(
        [output.prompt_logprobs[1:] for output in outputs if output.prompt_logprobs]
    )


def check(llm: LLM, merged: LLM, names: list[str]) -> float:
    """The largest difference. Raises RuntimeError where it is too large, or adapters do nothing."""
    together = scores(llm, [*names, None])
    alone = torch.cat([scores(llm, [name]) for name in (*names, None)])
    error = max(
        float((together - alone).abs().max()),
        float((together[:1] - scores(merged, [None])).abs().max()),
    )
    if not error < TOLERANCE[llm.engine.built.dtype]:
        raise RuntimeError(f"log probabilities differ by {error}")
    if (together[:-1] - together[-1]).abs().max() < 0.1:
        raise RuntimeError("the adapters change nothing")
    return error


def seconds(llm: LLM, names: list[str | None]) -> tuple[float, float]:
    """Of a decode step, and of a prompt, of a batch with these adapters."""
    ids = list(range(10, 10 + PROMPT))
    params = SamplingParams(temperature=0, max_tokens=STEPS + 2, ignore_eos=True)
    start = perf_counter()
    several = names[:4]
    llm.generate([ids] * len(several), SamplingParams(temperature=0, max_tokens=1), lora=several)
    prompt = (perf_counter() - start) / len(several)
    for i, name in enumerate(names):
        llm.add_request([5 + i] * 8, params, lora=name)
    llm.step(), llm.step()
    start = perf_counter()
    for _ in range(STEPS):
        llm.step()
    decode = (perf_counter() - start) / STEPS
    while llm.engine.busy:
        llm.step()
    return decode, prompt


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    rank: Annotated[int, typer.Option(help="of all adapters")] = 16,
    adapters: Annotated[int, typer.Option(help="adapters that are loaded")] = 3,
    batches: Annotated[str | None, typer.Option(help="sizes, like 1,8")] = None,
    rounds: Annotated[int, typer.Option(help="of which the median counts")] = 5,
    results: Annotated[Path | None, typer.Option(help="folder of lora.jsonl")] = None,
) -> None:
    """Measure and print; --results adds the lines to a file."""
    gpu = device == "cuda"
    options: dict[str, Any] = {"device": device, "prefix_caching": False, "random_weights": gpu}
    options |= {"kv_memory": "20GB" if gpu else "500MB", "max_model_len": 2048}
    options["weights"] = "float"  # which adapters are merged into, to compare
    model = str(LLAMA) if gpu else "smollm2"
    lines = []
    with (
        LLM(model, max_loras=adapters, max_lora_rank=rank, **options) as llm,
        LLM(model, max_loras=1, max_lora_rank=rank, **options) as merged,
    ):
        built = llm.engine.built
        names = [f"adapter-{i}" for i in range(adapters)]
        for seed, name in enumerate(names):
            llm.engine.adapters.add(name, random_adapter(built.source.config, rank, seed))
        merged.engine.adapters.add("first", random_adapter(built.source.config, rank, 0))
        merge(merged)
        facts = {
            "device": torch.cuda.get_device_name() if gpu else "CPU",
            "revision": revision(),
            "model": built.source.name,
            "dtype": str(built.dtype).removeprefix("torch."),
            "adapters": adapters,
            "rank": rank,
            "max_error": round(check(llm, merged, names), 6),
        }
        for size in map(int, (batches or BATCHES[device]).split(",")):
            mixed: list[str | None] = list(islice(cycle(names), size))
            kinds: dict[str, tuple[LLM, list[str | None]]] = {
                "merged": (merged, [None] * size),
                "base": (llm, [None] * size),
                "one": (llm, [names[0]] * size),
                "several": (llm, mixed),
            }
            taken = [
                {kind: seconds(*what) for kind, what in kinds.items()} for _ in range(rounds + 1)
            ]
            for kind in kinds:
                line = {**facts, "batch": size, "kind": kind}
                for side, name in enumerate(("step", "prompt")):
                    ms = [1e3 * times[kind][side] for times in taken[1:]]
                    line |= {
                        f"{name}_ms": round(median(ms), 2),
                        f"{name}_low_ms": round(min(ms), 2),
                    }
                lines.append(json.dumps(line))
                typer.echo(lines[-1])
    if results is not None:
        with (results / "lora.jsonl").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    typer.run(main)

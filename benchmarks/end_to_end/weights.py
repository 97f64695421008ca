"""Weights in few bits on a CPU: tokens/s, memory, and whether the tokens stay; next to llama.cpp.

    python -m benchmarks.end_to_end.weights --rounds 3

SmolLM2 from its own 4-bit file: as numbers (float), as the file has it (auto), quantized anew; and
the same file by llama.cpp (`pip install llama-cpp-python`; left out where that is missing). Each
runs in a process of its own, one after the other, in as many rounds; the best round counts, as
other work on the machine can only slow one down. All tokens are compared with those of float.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

from gossamer.bench import Measurement, Record, Timing, copy_bandwidth, write_records
from gossamer.bench.record import device_folder
from gossamer.engine import LLM, SamplingParams
from gossamer.models.embedded import embedded_path

OP, MODEL = "engine_weights", "smollm2"
RESULTS = Path(__file__).parents[1] / "results"
TEXT = Path(__file__).parents[1] / "data/wikitext2-valid-excerpt.txt"
LLAMA = "llama.cpp"
RUNS = ("float", "auto", "int8", "int4", LLAMA)
PROMPTS, NEW, PREFILL = 20, 32, 512  # prompts and their new tokens, and a long prompt
DECODE = 128  # tokens
REPEATS = 3


def resident() -> dict[str, int]:
    """Memory of this process in bytes, now: all, and what is no mapped file."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {line[0]: int(line[1]) for line in lines if line[0] in ("VmRSS:", "RssAnon:")}
    return {"resident": kilobytes["VmRSS:"] * 1024, "anonymous": kilobytes["RssAnon:"] * 1024}


def pieces(ids: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Short prompts, and long ones that share nothing."""
    short = [ids[100 * i : 100 * i + 24] for i in range(PROMPTS)]
    first = 100 * PROMPTS
    return short, [ids[first + PREFILL * i :][:PREFILL] for i in range(REPEATS)]


def best(call: Callable[[list[int]], object], prompts: list[list[int]]) -> float:
    """The shortest of the calls, in seconds."""
    seconds = []
    for prompt in prompts:
        start = perf_counter()
        call(prompt)
        seconds.append(perf_counter() - start)
    return min(seconds)


def ours(weights: str, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    with LLM(MODEL, weights=weights, max_model_len=2048, prefix_caching=False) as llm:
        loaded = resident()
        short, long = pieces(llm.tokenizer(TEXT.read_text())["input_ids"])

        def generate(prompt: list[int], tokens: int) -> list[int]:
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            return llm.generate([prompt], params)[0].outputs[0].token_ids

        tokens = [generate(prompt, NEW) for prompt in short]
        prefill = best(lambda prompt: generate(prompt, 1), long)
        first = best(lambda prompt: generate(prompt, 1), short[:REPEATS])
        whole = best(lambda prompt: generate(prompt, DECODE + 1), short[:REPEATS])
        decoder = llm.engine.built.runner.decoder
        layers = [x for layer in decoder.weights.layers for x in vars(layer).values()]
        size = sum(x.nbytes for x in (*layers, decoder.weights.head) if x is not None)
    return {
        "prefill": PREFILL / prefill,
        "decode": DECODE / (whole - first),
        "tokens": tokens,
        "bytes": size,
        **loaded,
        "resident_after": resident()["resident"],
    }


def llama(threads: int) -> dict[str, Any]:
    path = embedded_path(MODEL)
    model: Any = import_module("llama_cpp").Llama(
        str(path),
        n_ctx=2048,
        n_batch=512,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )
    loaded = resident()
    ids = model.tokenize(TEXT.read_text().encode(), add_bos=False, special=False)
    short, long = pieces(ids)

    def generate(prompt: list[int], count: int) -> list[int]:
        """Greedy, by the calls that its own `generate` makes, without sampling's extras."""
        model.reset()
        model.eval(prompt)
        found: list[int] = []
        for _ in range(count):
            found.append(int(model.sample(temp=0.0, repeat_penalty=1.0)))
            if len(found) < count:
                model.eval(found[-1:])
        return found

    tokens = [generate(prompt, NEW) for prompt in short]
    prefill = best(lambda prompt: generate(prompt, 1), long)
    first = best(lambda prompt: generate(prompt, 1), short[:REPEATS])
    whole = best(lambda prompt: generate(prompt, DECODE + 1), short[:REPEATS])
    return {
        "prefill": PREFILL / prefill,
        "decode": DECODE / (whole - first),
        "tokens": tokens,
        "bytes": path.stat().st_size,
        **loaded,
        "resident_after": resident()["resident"],
    }


def same(tokens: list[list[int]], others: list[list[int]]) -> float:
    """Share of tokens up to where each prompt's first differs."""
    pairs = [zip(a, b, strict=True) for a, b in zip(tokens, others, strict=True)]
    equal = sum(len(list(takewhile(lambda pair: pair[0] == pair[1], pair))) for pair in pairs)
    return equal / sum(map(len, tokens))


def record(name: str, rounds: list[dict[str, Any]], floats: list[list[int]]) -> Record:
    """Of the best round in each figure; a step's time, and the rest as facts."""
    steps = sorted(1e3 / found["decode"] for found in rounds)
    last = rounds[-1]
    facts = {
        "decode_tokens_per_s": max(found["decode"] for found in rounds),
        "prefill_tokens_per_s": max(found["prefill"] for found in rounds),
        "same_tokens": same(last["tokens"], floats),
        "same_prompts": sum(a == b for a, b in zip(last["tokens"], floats, strict=True)) / PROMPTS,
        "resident_mb": last["resident"] / 1e6,
        "anonymous_mb": last["anonymous"] / 1e6,
        "resident_after_mb": last["resident_after"] / 1e6,
    }
    peer = name == LLAMA
    return Record.of(
        Measurement(Timing(steps[0], steps[0], steps[-1], steps[0], len(steps)), 0.0, 0.0),
        op=OP,
        backend=f"llama-cpp-python {version('llama-cpp-python')}" if peer else "gossamer",
        shape=[1, 24],
        dtype=torch.float32,
        variant=f"SmolLM2-135M-Instruct, {'its file' if peer else name}",
        bytes=last["bytes"],
        flops=0,
        ceiling_gbps=copy_bandwidth("cpu"),
        device="cpu",
        facts=facts,
    )


def main(
    rounds: Annotated[int, typer.Option(help="of which the best counts")] = 3,
    threads: Annotated[int, typer.Option(help="of each engine")] = 2,
    results: Annotated[Path, typer.Option(help="folder for the result files")] = RESULTS,
    one: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure; records go to engine_weights.jsonl."""
    if one is not None:
        typer.echo(json.dumps(llama(threads) if one == LLAMA else ours(one, threads)))
        return
    names = [name for name in RUNS if name != LLAMA or find_spec("llama_cpp")]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            command = [
                sys.executable,
                "-m",
                __spec__.name,
                "--one",
                name,
                "--threads",
                str(threads),
            ]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[name].append(json.loads(output.splitlines()[-1]))
            line = {k: v for k, v in found[name][-1].items() if k != "tokens"}
            typer.echo(f"{name}: {line}")
    floats = found["float"][-1]["tokens"]
    records = [record(name, each, floats) for name, each in found.items()]
    for each in records:
        typer.echo(f"{each.variant}: {each.facts}")
    write_records(records, results / device_folder("cpu") / f"{OP}.jsonl")


if __name__ == "__main__":
    typer.run(main)

"""Prefill in one process, decode in another: bytes that move, first tokens, and the same tokens.

    python -m benchmarks.end_to_end.handoff

For each cache three processes, one after the other: one computes prompts of about 2,000 tokens and
publishes their pages in a folder; another continues them; a third does both by itself. Tokens must
be those of the third when it finds a prompt in its own prefix cache.
"""

import multiprocessing
import os
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer

from gossamer.bench import Measurement, Record, Timing, copy_bandwidth, write_records
from gossamer.bench.record import device_folder
from gossamer.engine import LLM, SamplingParams
from gossamer.models import open_model

OP, MODEL = "engine_handoff", "smollm2"
RESULTS = Path(__file__).parents[1] / "results"
TEXT = Path(__file__).parents[1] / "data/wikitext2-test-excerpt.txt"
RUNS = (
    ("dense", "float32"),
    ("coded:23.5%", "float32"),
    ("dense:int8", "float32"),
    ("k=dense:int4@channel,v=dense:int4@group", "float32"),
    ("dense", "bfloat16"),
    ("coded:23.5%", "bfloat16"),
)
LENGTHS = (1990, 2010, 2030)
NEW = 16  # tokens
GIGABITS = (10, 100)

Answer = tuple[float, list[int]]  # milliseconds to the first token, and all tokens


def prompts() -> list[list[int]]:
    """Different pieces of a text."""
    ids = open_model(MODEL).tokenizer()(TEXT.read_text())["input_ids"]
    starts = np.cumsum((0, *LENGTHS))
    return [ids[start : start + length] for start, length in zip(starts, LENGTHS, strict=False)]


def answer(llm: LLM, prompt: list[int], tokens: int) -> Answer:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    start, first, ids = perf_counter(), 0.0, list[int]()
    for delta in llm.stream([prompt], params):
        first = first or 1e3 * (perf_counter() - start)
        ids += delta.token_ids
    return first, ids


def served(options: dict[str, Any], tokens: int, times: int) -> tuple[list[list[Answer]], int]:
    """In a process of its own: each prompt so many times, and the bytes that it fetched."""
    with LLM(MODEL, max_num_seqs=4, max_model_len=2112, **options) as llm:
        answer(llm, [os.getpid() % 1000] * 500, 2)  # kernels are loaded; no page is found
        found = [[answer(llm, prompt, tokens) for _ in range(times)] for prompt in prompts()]
        handoff = llm.engine.handoff
        return found, 0 if handoff is None else handoff.fetched_bytes


def measured(kv: str, dtype: str, device: str) -> Record:
    """Raises RuntimeError where tokens are not the same."""
    options = {"kv": kv, "dtype": dtype, "device": device}
    shared = tempfile.TemporaryDirectory(dir="/dev/shm")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool, shared as folder:
        apart = options | {"kv_transfer": folder}
        filled, _ = pool.apply(served, (apart | {"kv_role": "prefill"}, 1, 1))
        mine, moved = pool.apply(served, (apart | {"kv_role": "decode"}, NEW, 1))
        alone, _ = pool.apply(served, (options, NEW, 2))
    if [tokens for [(_, tokens)] in mine] != [tokens for _, (_, tokens) in alone]:
        raise RuntimeError(f"{kv}: decoded apart, tokens are not those of one process")
    low, middle, high = np.quantile([ms for [(ms, _)] in mine], (0.1, 0.5, 0.9))
    model = open_model(MODEL)
    shape, blocks = model.config.kv_shape, sum((n - 1) // 32 for n in LENGTHS)
    in_16_bits = blocks * 32 * shape.layers * shape.kv_heads * shape.head_dim * 2 * 2
    each = moved / len(LENGTHS)
    facts = {
        "prefill_ms": median(ms for [(ms, _)] in filled),
        "alone_ms": median(first for (first, _), _ in alone),
        "alone_cached_ms": median(again for _, (again, _) in alone),
        "same_without_cache": sum(a == b for (_, a), (_, b) in alone) / len(alone),
        "share_of_16_bits": moved / in_16_bits,
        **{f"wire_{rate}_gbit_ms": each * 8 / rate / 1e6 for rate in GIGABITS},
    }
    return Record.of(
        Measurement(Timing(middle, low, high, middle, len(mine)), 0.0, 0.0),
        op=OP,
        backend="gossamer",
        shape=[1, int(median(LENGTHS))],
        dtype=getattr(torch, dtype),
        variant=f"{model.name}, {kv}",
        bytes=round(each),
        flops=0,
        ceiling_gbps=copy_bandwidth(device),
        device=device,
        facts=facts,
    )


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    results: Annotated[Path, typer.Option(help="folder for the result files")] = RESULTS,
) -> None:
    """Measure; records go to engine_handoff.jsonl."""
    records = []
    for kv, dtype in RUNS:
        records.append(measured(kv, dtype, device))
        typer.echo(f"{kv} {dtype}: {records[-1].median_ms} ms, {records[-1].facts}")
        write_records(records, results / device_folder(device) / f"{OP}.jsonl")


if __name__ == "__main__":
    typer.run(main)

"""How long prompts take in the engine, with dense and sparse caches, the first time and later.

    python -m benchmarks.end_to_end.prefill

A record for each cache and length: the median of the same prompt again and again, and `first_ms`
of the first time, of a length that the process has not seen. First tokens must be the same.
"""

from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer

from gossamer.bench import Measurement, Record, Timing, copy_bandwidth, write_records
from gossamer.bench.record import device_folder
from gossamer.engine import LLM, SamplingParams

OP = "engine_prefill"
RESULTS = Path(__file__).parents[1] / "results"
LLAMA = Path(__file__).parents[1] / "models/llama-3-8b"
CACHES = ("dense", "sparse:k=40,v=40")
LENGTHS = {"cuda": (509, 2048, 8192, 30001), "cpu": (509, 2048)}
REPEATS = {"cuda": 5, "cpu": 3}


def timed(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Milliseconds until the first token, and that token."""
    start = perf_counter()
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    return 1e3 * (perf_counter() - start), output.outputs[0].token_ids[0]


def measured(llm: LLM, device: str, kv: str, length: int) -> Record:
    """Raises RuntimeError where the first token is not the same every time."""
    built = llm.engine.built
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(10, built.source.config.vocab_size, (length,), generator=generator)
    first, token = timed(llm, prompt.tolist())
    later = [timed(llm, prompt.tolist()) for _ in range(REPEATS[device])]
    if {again for _, again in later} != {token}:
        raise RuntimeError(f"{length} tokens: first tokens {token} and {later} differ")
    low, median, high = np.quantile([ms for ms, _ in later], (0.1, 0.5, 0.9))
    return Record.of(
        Measurement(Timing(median, low, high, median, len(later)), 0.0, 0.0),
        op=OP,
        backend="gossamer",
        shape=[1, length],
        dtype=built.dtype,
        variant=f"{built.source.name}, {kv}",
        bytes=0,
        flops=0,
        ceiling_gbps=copy_bandwidth(device),
        device=device,
        facts={"first_ms": first},
    )


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    results: Annotated[Path, typer.Option(help="folder for the result files")] = RESULTS,
) -> None:
    """Measure; records go to engine_prefill.jsonl."""
    gpu, records = device == "cuda", []
    longest = max(LENGTHS[device]) + 64
    for kv in CACHES:
        options: dict[str, Any] = {"prefix_caching": False, "max_num_seqs": 4, "device": device}
        model = str(LLAMA) if gpu else "smollm2"
        with LLM(model, kv=kv, random_weights=gpu, max_model_len=longest, **options) as llm:
            timed(llm, [5] * 1000)  # kernels are loaded and compiled
            for length in LENGTHS[device]:
                record = measured(llm, device, kv, length)
                typer.echo(f"{kv} {length}: {record.median_ms} ms, first {record.facts}")
                records.append(record)
        del llm
        if gpu:
            torch.cuda.empty_cache()
    write_records(records, results / device_folder(device) / f"{OP}.jsonl")


if __name__ == "__main__":
    typer.run(main)

"""Peak memory and speed of the engine: prompt and output lengths, batches, caches.

    python -m benchmarks.end_to_end.memory benchmarks/models/llama-135m --kv dense --kv dense:int8

Random weights, an engine of its own for every cache and point, a KV cache as large as the point
needs. Peaks are of the device's allocations, on a CPU of the process; what the weights and the
process take before the first request is measured and told apart.
"""

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from gossamer.bench import Measurement, Record, copy_bandwidth
from gossamer.cli.options import one_line_errors
from gossamer.workloads.bench import BenchConfig
from gossamer.workloads.measuring import equal_requests, measure
from gossamer.workloads.records import show, timing, variant
from gossamer.workloads.sizes import memory_for, weight_bytes

OP = "engine_memory"


def reset_peak(device: str) -> None:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of resident memory


def peak_bytes(device: str) -> int:
    """Since the last reset."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def point(config: BenchConfig, kv: str, batch: int, prompt: int, output: int) -> Record:
    """One batch of equal requests: median of its decode steps, peaks, tokens/s."""
    dtype, device, shape = config.resolved()
    memory = memory_for(config.sized(kv), shape, dtype, prompt + output, batch)
    options = {"kv_memory": memory, "max_model_len": prompt + output, "max_num_seqs": batch + 1}
    with config.load(kv, **options) as llm:
        engine = llm.engine
        reset_peak(device)
        before = peak_bytes(device)
        vocab = engine.built.source.config.vocab_size
        found = measure(llm, equal_requests(vocab, batch, prompt, output))
        peak, weights = peak_bytes(device), weight_bytes(engine)
        seconds = found.full_steps() or [found.seconds]
        facts = {
            "tokens_per_second": found.output_tokens / found.seconds,
            "decode_tokens_per_second": found.decode_rate,
            "first_token_seconds": max(found.first),
            "peak_bytes": peak,
            "peak_bytes_without_weights": peak - weights,
            "bytes_before": before,
            "weight_bytes": weights,
            "kv_bytes": found.kv_bytes,
            "kv_bytes_dense": found.kv_bytes_dense,
        }
        return Record.of(
            Measurement(timing(seconds), 0.0, 0.0),
            op=OP,
            backend="gossamer",
            shape=(batch, prompt, output),
            dtype=dtype,
            variant=variant(engine, kv),
            bytes=peak,
            flops=0,
            ceiling_gbps=copy_bandwidth(torch.device(device).type),
            device=device,
            facts=facts,
        )


def points(
    config: BenchConfig, batches: list[int], prompts: list[int], outputs: list[int]
) -> Iterator[Record]:
    """One that does not fit is told, and keeps no other back."""
    for kv in config.caches:
        for batch in batches:
            for prompt in prompts:
                for output in outputs:
                    where = f"{kv}, {batch} x {prompt}+{output}"
                    try:
                        record = point(config, kv, batch, prompt, output)
                    except (torch.cuda.OutOfMemoryError, MemoryError, ValueError) as error:
                        typer.echo(f"{where}: failed: {error}", err=True)
                        continue
                    facts = record.facts
                    typer.echo(f"{where}: peak {facts['peak_bytes'] / 1e9:.2f} GB")
                    yield record


def main(
    model: Annotated[Path, typer.Argument(help="a folder with a config.json")],
    kv: Annotated[list[str], typer.Option(help="caches; repeatable")],
    batch: Annotated[list[int] | None, typer.Option(help="sequences; repeatable")] = None,
    prompt: Annotated[list[int] | None, typer.Option(help="tokens; repeatable")] = None,
    output: Annotated[list[int] | None, typer.Option(help="tokens; repeatable")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; default: what there is")] = "auto",
    dtype: Annotated[str, typer.Option(help="of the weights")] = "auto",
    results: Annotated[Path | None, typer.Option(help="folder for the records")] = None,
) -> None:
    """Measure; lines go to engine_memory.jsonl."""
    with one_line_errors():
        config = BenchConfig(str(model), kv, dtype, device, random_weights=True)
        found = list(points(config, batch or [1], prompt or [128], output or [32]))
        if not found:
            raise ValueError("no point could be measured")
        show(found, results, config.resolved_device())


if __name__ == "__main__":
    typer.run(main)

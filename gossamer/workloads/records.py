"""Measurements of engines as records: one JSON line each, like those of ops.

The shape is [sequences, context tokens]; model and KV cache are in the variant. No result is
compared with an oracle here: the errors are 0, and benchmarks.end_to_end.engine checks tokens
where it can.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gossamer.bench import Measurement, Record, Timing, copy_bandwidth, read_records, write_records
from gossamer.bench.record import device_folder
from gossamer.engine import Engine
from gossamer.workloads.measuring import Measured
from gossamer.workloads.sizes import kv_bytes_read, weight_bytes, weight_count

BACKEND = "gossamer"
LOG_WIDTH = 200  # a log has room for whole rows
DECODE, FIRST_TOKEN, THROUGHPUT = "engine_decode", "engine_first_token", "engine_throughput"


def variant(engine: Engine, kv: str) -> str:
    return f"{engine.built.source.name}, {kv}"


def decode_record(
    engine: Engine, kv: str, found: Measured, context: int, *, filled: bool = False
) -> Record:
    """Of the full decode steps; bytes are the weights and what is read of K and V."""
    seconds = found.full_steps()
    if not seconds:
        raise ValueError(
            f"no decode step had all {found.requests} sequences of {context} tokens in it; "
            "make the output or kv_memory larger"
        )
    middle = context + found.output_tokens // found.requests // 2
    kv_bytes = found.requests * kv_bytes_read(engine, middle)
    facts = {
        "tokens_per_second": found.decode_rate,
        "weight_bytes": weight_bytes(engine),
        "kv_bytes_read": kv_bytes,
        "kv_bytes": found.kv_bytes,
        "kv_bytes_dense": found.kv_bytes_dense,
        "preemptions": found.preemptions,
    }
    name = variant(engine, kv) + (", fill" if filled else "")
    shape, size = [found.requests, context], weight_bytes(engine) + kv_bytes
    flops = 2 * weight_count(engine) * found.requests
    return _record(engine, DECODE, shape, name, timing(seconds), size, flops, facts)


def first_token_record(engine: Engine, kv: str, found: Measured, context: int) -> Record:
    """Of the time until each of the requests, which came at once, has its first token."""
    name, shape, times = variant(engine, kv), [found.requests, context], timing(found.first)
    flops = 2 * weight_count(engine) * found.prompt_tokens
    facts = {"tokens_per_second": found.prompt_tokens / max(found.first)}
    return _record(engine, FIRST_TOKEN, shape, name, times, weight_bytes(engine), flops, facts)


def throughput_record(
    engine: Engine, kv: str, found: Measured, workload: str, *, context: int, filled: bool
) -> Record:
    """Of a whole run; where prompts were not computed, of its steps that decode."""
    seconds = sum(s for s, _ in found.steps) if filled else found.seconds
    tokens = sum(n for _, n in found.steps) if filled else found.output_tokens
    total = tokens if filled else found.output_tokens + found.prompt_tokens
    facts = {
        "tokens_per_second": tokens / seconds,
        "total_tokens_per_second": total / seconds,
        "full_batch_tokens_per_second": found.decode_rate,
        "prompt_tokens": found.prompt_tokens,
        "cached_tokens": found.cached_tokens,
        "output_tokens": found.output_tokens,
        "kv_bytes": found.kv_bytes,
        "kv_bytes_dense": found.kv_bytes_dense,
        "preemptions": found.preemptions,
        "steps": found.engine_steps,
    }
    name, shape = f"{variant(engine, kv)}, {workload}", [found.requests, context]
    size, flops = found.engine_steps * weight_bytes(engine), 2 * weight_count(engine) * total
    return _record(engine, THROUGHPUT, shape, name, timing([seconds]), size, flops, facts)


def timing(seconds: list[float]) -> Timing:
    """Median, 10th and 90th percentile in milliseconds, of wall-clock time."""
    low, median, high = (float(x) * 1e3 for x in np.percentile(seconds, [10, 50, 90]))
    return Timing(median, low, high, median, len(seconds))


def _record(
    engine: Engine,
    op: str,
    shape: list[int],
    name: str,
    times: Timing,
    size: int,
    flops: int,
    facts: dict[str, float],
) -> Record:
    device = str(engine.built.device)
    return Record.of(
        Measurement(times, 0.0, 0.0),
        op=op,
        backend=BACKEND,
        shape=shape,
        dtype=engine.built.dtype,
        variant=name,
        bytes=size,
        flops=flops,
        ceiling_gbps=copy_bandwidth(torch.device(device).type),
        device=device,
        facts=facts,
    )


def write(records: Iterable[Record], folder: Path, device: str) -> Path:
    """Into a file per op, next to its records of other points. Returns the files' folder."""
    place = folder / device_folder(device)
    new = list(records)
    for op in dict.fromkeys(record.op for record in new):
        path = place / f"{op}.jsonl"
        by_point = {(r.point, r.backend): r for r in (read_records(path) if path.exists() else [])}
        by_point |= {(r.point, r.backend): r for r in new if r.op == op}
        write_records(by_point.values(), path)
    return place


def show(records: list[Record], folder: Path | None, device: str) -> None:
    """A table on stdout, and files if there is a folder for them."""
    console = Console()
    console = console if console.is_terminal else Console(width=LOG_WIDTH)
    console.print(engine_table(records))
    if folder is not None:
        typer.echo(f"written to {write(records, folder, device)}")


def engine_table(records: list[Record]) -> Table:
    """For people: a row per record."""
    table = Table(title=records[0].device if records else "nothing measured", title_justify="left")
    for name in ("what", "sequences x context", "dtype", "by", "model and cache"):
        table.add_column(name, overflow="fold")
    for name in ("median ms", "p90 ms", "tok/s", "of floor", "KV MB", "saved", "preempted"):
        table.add_column(name, justify="right")
    for r in records:
        facts, dense = r.facts, r.facts.get("kv_bytes_dense", 0)
        table.add_row(
            r.op.removeprefix("engine_").replace("_", " "),
            "x".join(map(str, r.shape)),
            r.dtype,
            r.backend,
            escape(r.variant),
            f"{r.median_ms:,.4g}",
            f"{r.high_ms:,.4g}",
            f"{facts['tokens_per_second']:,.1f}",
            f"{r.ceiling_share:.0%}" if r.op == DECODE else "",
            f"{facts['kv_bytes'] / 1e6:,.1f}" if "kv_bytes" in facts else "",
            f"{1 - facts['kv_bytes'] / dense:.0%}" if dense else "",
            f"{facts['preemptions']:.0f}" if "preemptions" in facts else "",
        )
    return table

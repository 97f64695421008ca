"""What `gossamer bench` does, apart from its command line."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console

from gossamer.bench import Record
from gossamer.cli.engine_records import (
    decode_record,
    engine_table,
    first_token_record,
    throughput_record,
    write,
)
from gossamer.cli.fill import fill as fill_engine
from gossamer.cli.options import at_least, given
from gossamer.cli.runs import loaded
from gossamer.cli.sizes import memory_for, sequences_that_fit
from gossamer.cli.workloads import Request, equal_requests, measure, random_requests, warm_up
from gossamer.engine import LLM, EngineConfig
from gossamer.engine.config import parse_bytes
from gossamer.engine.kv_cache import parse_kv
from gossamer.kv import KVShape
from gossamer.models import open_model

LOG_WIDTH = 200
REQUESTS = 256
FILL_BUDGET = 1 << 24  # tokens; prompts that cost nothing all start in one step


@dataclass(frozen=True)
class Options:
    """What all benchmarks of engines need to know."""

    model: str
    caches: list[str]
    dtype: str = "auto"
    device: str = "auto"
    kv_memory: str | int | None = None
    calibration: Path | None = None
    random_weights: bool = False
    eager: bool = False

    def resolved(self) -> tuple[torch.dtype, str, KVShape]:
        """The dtype and device that the engine will choose, and the model's shape."""
        config = EngineConfig(model=self.model, dtype=self.dtype, device=self.device)
        device = config.resolved_device()
        model = open_model(self.model, self.random_weights).config
        return config.resolved_dtype(device, model.dtype), str(device), model.kv_shape

    def load(self, kv: str, **more: Any) -> AbstractContextManager[LLM]:
        """An engine without prefix cache: random prompts share nothing."""
        options = given(
            kv=kv,
            dtype=self.dtype,
            device=self.device,
            kv_memory=self.kv_memory,
            calibration=self.calibration,
            random_weights=self.random_weights,
            enforce_eager=self.eager,
            prefix_caching=False,
        )
        return loaded(self.model, **{**options, **more})


@dataclass(frozen=True)
class Load:
    """Requests of `throughput`: drawn from ranges, or `context` tokens each."""

    requests: int | None = None
    inputs: str = "100,1024"
    outputs: str = "100,1024"
    context: int | None = None
    fill: bool = False
    temperature: float = 0.6
    seed: int = 0

    def __str__(self) -> str:
        if self.context is None:
            return f"input {self.inputs} output {self.outputs}"
        return f"output {self.outputs}" + (" fill" if self.fill else "")


def throughput(options: Options, load: Load, results: Path | None) -> list[Record]:
    """Measure, print and write. Raises ValueError for what cannot be run."""
    at_least("requests", 1 if load.requests is None else load.requests, 1)
    if load.fill and load.context is None:
        raise ValueError("--fill is there without --context; must be with it")
    if load.context is not None and load.requests is None and options.kv_memory is None:
        raise ValueError("--kv-memory is not there; must be with --context")
    inputs, outputs = bounds("input", load.inputs), bounds("output", load.outputs)
    if load.context is not None:
        at_least("context", load.context, 1)
        inputs = (load.context, load.context)
    longest = inputs[1] + outputs[1]
    dtype, device, shape = options.resolved()
    records = []
    for kv in options.caches:
        count, more = load.requests or REQUESTS, dict[str, Any]()
        if load.context is not None and load.requests is None and options.kv_memory is not None:
            memory = parse_bytes("kv_memory", options.kv_memory)
            count = sequences_that_fit(parse_kv(kv, dtype), shape, dtype, longest, memory)
            more = {"max_num_seqs": count + 1}
        more |= {"max_num_batched_tokens": FILL_BUDGET} if load.fill else {}
        with options.load(kv, max_model_len=longest, **more) as llm:
            vocab = llm.engine.built.source.config.vocab_size
            requests = random_requests(vocab, count, inputs, outputs, load.seed)
            records.append(measure_throughput(llm, kv, requests, load))
    show(records, results, device)
    return records


def measure_throughput(llm: LLM, kv: str, requests: list[Request], load: Load) -> Record:
    """One run of all requests, after a short one."""
    if load.fill:
        fill_engine(llm)
    warm_up(llm, requests)
    found = measure(llm, requests, load.temperature)
    context = max(len(request.ids) for request in requests)
    return throughput_record(llm.engine, kv, found, str(load), context=context, filled=load.fill)


def latency(
    options: Options, batch: str, context: str, output: int, fill: bool, results: Path | None
) -> list[Record]:
    """Measure, print and write. Raises ValueError for what cannot be run."""
    batches, contexts = numbers("batch", batch), numbers("context", context)
    at_least("output", output, 2)
    dtype, device, shape = options.resolved()
    longest, most = max(contexts) + output, max(batches)
    records = []
    for kv in options.caches:
        memory = options.kv_memory
        if memory is None:
            memory = memory_for(parse_kv(kv, dtype), shape, dtype, longest, most)
        more = {"max_num_batched_tokens": FILL_BUDGET} if fill else {}
        with options.load(
            kv, kv_memory=memory, max_model_len=longest, max_num_seqs=most + 1, **more
        ) as llm:
            if fill:
                fill_engine(llm)
            for count in batches:
                for tokens in contexts:
                    records += measure_latency(llm, kv, count, tokens, output, fill)
    show(records, results, device)
    return records


def measure_latency(
    llm: LLM, kv: str, batch: int, context: int, output: int, fill: bool
) -> list[Record]:
    """Of one batch: decode steps, and unless prompts are not computed, first tokens."""
    engine = llm.engine
    requests = equal_requests(engine.built.source.config.vocab_size, batch, context, output)
    warm_up(llm, requests)
    found = measure(llm, requests)
    records = [] if fill else [first_token_record(engine, kv, found, context)]
    return [*records, decode_record(engine, kv, found, context, filled=fill)]


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Positive integers between commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--{name} is {text!r}; must be positive integers like 1,8")
    return tuple(int(part) for part in parts)


def bounds(name: str, text: str) -> tuple[int, int]:
    """MIN,MAX, or one number for both."""
    found = numbers(name, text)
    if len(found) > 2 or found[0] > found[-1]:
        raise ValueError(f"--{name} is {text!r}; must be MIN,MAX")
    return found[0], found[-1]


def show(records: list[Record], results: Path | None, device: str) -> None:
    """A table on stdout, and files if there is a folder for them."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_WIDTH)
    console.print(engine_table(records))
    if results is not None:
        typer.echo(f"written to {write(records, results, device)}")

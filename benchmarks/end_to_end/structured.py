"""Structured outputs: whether documents are valid, and what grammars cost.

    python -m benchmarks.end_to_end.structured                                   # on a CPU, SmolLM2
    python -m benchmarks.end_to_end.structured --part throughput --device cuda   # about a minute

valid: `gossamer serve smollm2`, the `openai` client, 200 random schemas at temperature 1, streamed
and whole, and regexes and choices; each answer is checked by jsonschema or re. Exit code 1 if one
is not valid. Counts of each kind in structured_valid.json.

throughput: a batch with a grammar for each sequence and the same batch without, in turns; no output
ends before the others. A record for each in structured.jsonl. ratio: of tokens per second with and
without, the median of the pairs; cpu_ratio: the same of processor time, which other processes of a
shared machine disturb less. What a timed call wrote is checked against its grammar.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import numpy as np
import openai
import typer

from benchmarks.end_to_end.random_schemas import random_schema
from benchmarks.end_to_end.soak import server
from gossamer.bench import Measurement, Record, Timing, copy_bandwidth, write_records
from gossamer.bench.record import device_folder
from gossamer.engine import LLM, SamplingParams, StructuredOutputs
from gossamer.models import ModelConfig, Source, open_model
from gossamer.models.random import RandomSource

OP = "structured"
RESULTS = Path(__file__).parents[1] / "results"
LLAMA = Path(__file__).parents[1] / "models/llama-3-8b"
TEXT = Path(__file__).parents[1] / "data/wikitext2-test-excerpt.txt"
SCHEMAS, OTHERS = 200, 20
CONCURRENCY = 16
LIMIT = 1024  # tokens of a document
PROMPT = "Write a JSON document for a record in our database."
REGEXES = (r"\d{3}-\d{4}", r"[A-Z][a-z]{2,8} (loves|hates) [a-z]{3,10}", r"(yes|no)( sir)?[.!]")
CHOICES = (["yes", "no"], ["red", "green", "light blue"], ["1", "12", "123"])
ROUNDS = 8
# device: batches, and new tokens of each sequence
SIZES = {"cpu": ((8,), 24), "cuda": ((32, 128), 128)}
MANY = 1000  # objects in a list: more than there are tokens, so that no output ends


# ---- valid ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A request that is held to something, and what its answer must pass."""

    kind: str
    body: dict[str, Any]
    check: Callable[[str], object]


def cases(count: int, others: int) -> Iterator[Case]:
    for seed in range(count):
        schema = random_schema(seed)
        form = {"type": "json_schema", "json_schema": {"name": "record", "schema": schema}}
        yield Case("schema", {"response_format": form, "seed": seed}, valid_for(schema))
    for seed in range(others):
        pattern, choice = REGEXES[seed % len(REGEXES)], CHOICES[seed % len(CHOICES)]
        for kind, given, check in (
            ("regex", {"regex": pattern}, re.compile(pattern, re.ASCII).fullmatch),
            ("choice", {"choice": choice}, choice.__contains__),
        ):
            body = {"extra_body": {"structured_outputs": given}, "seed": seed}
            yield Case(kind, body, check)


def valid_for(schema: dict[str, Any]) -> Callable[[str], bool]:
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())

    def check(text: str) -> bool:
        checker.validate(json.loads(text))
        return True

    return check


def answered(client: openai.OpenAI, case: Case, stream: bool) -> str | None:
    """What is wrong with the answer; None if nothing is."""
    messages = [{"role": "user", "content": PROMPT}]
    fields: dict[str, Any] = {"model": "smollm2", "messages": messages, "max_tokens": LIMIT}
    answer: Any = client.chat.completions.create(
        **fields, **case.body, temperature=1, stream=stream
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    said = [choice.delta if stream else choice.message for choice in choices]
    text = "".join(part.content or "" for part in said)
    reason = choices[-1].finish_reason
    try:
        good = case.check(text) and reason == "stop"
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{case.kind}: {error}: {text!r}"
    return None if good else f"{case.kind}: ended by {reason}: {text!r}"


def valid(count: int, others: int, results: Path) -> bool:
    every, lines, good = list(cases(count, others)), [], True
    with (
        server("smollm2", "--kv-memory", "500MB") as (url, _, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ThreadPoolExecutor(CONCURRENCY) as pool,
    ):
        for stream in (False, True):
            start = time.perf_counter()
            wrong = list(pool.map(lambda case, s=stream: answered(client, case, s), every))
            seconds = time.perf_counter() - start
            for kind in ("schema", "regex", "choice"):
                found = [w for c, w in zip(every, wrong, strict=True) if c.kind == kind]
                bad = [w for w in found if w is not None]
                good = good and not bad
                line: dict[str, Any] = {"kind": kind, "stream": stream, "requests": len(found)}
                lines.append({**line, "valid": len(found) - len(bad), "wrong": bad})
                typer.echo(lines[-1])
            typer.echo(f"{len(every)} requests in {seconds:.0f} s")
    folder = results / device_folder("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    told = {"what": "structured_valid", "model": "smollm2", "temperature": 1, "answers": lines}
    (folder / "structured_valid.json").write_text(json.dumps(told, indent=1) + "\n")
    return good


# ---- throughput -----------------------------------------------------------------------------


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
        replace(params, ignore_eos=False, structured_outputs=long_list(seed))
        for seed, params in enumerate(free)
    ]
    return prompts, held, free


def long_list(seed: int) -> StructuredOutputs:
    """Of objects of a schema that all sequences have one of their own of."""
    schema = random_schema(seed)
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


def measured(llm: LLM, device: str, kv: str, batch: int, tokens: int) -> list[Record]:
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
    quotients = np.array(seconds["free"]) / np.array(seconds["grammars"])
    ratio, cpu_ratio = (float(value) for value in np.median(quotients, axis=0))
    typer.echo(
        f"{batch} x {tokens}: {ratio:.3f} of the throughput without grammars, {cpu_ratio=:.3f}"
    )
    built, records = llm.engine.built, []
    for name, both in seconds.items():
        found = [wall for wall, _ in both]
        low, median, high = (1e3 * v for v in np.quantile(found, (0.1, 0.5, 0.9)))
        facts = {"tokens_per_second": 1e3 * batch * tokens / median}
        facts |= {"ratio": ratio, "cpu_ratio": cpu_ratio}
        record = Record.of(
            Measurement(Timing(median, low, high, median, len(found)), 0.0, 0.0),
            op=OP,
            backend="gossamer",
            shape=[batch, tokens],
            dtype=built.dtype,
            variant=f"{built.source.name}, {kv}, {name}",
            bytes=0,
            flops=0,
            ceiling_gbps=copy_bandwidth(device),
            device=device,
            facts=facts | ({"first_s": first} if name == "grammars" else {}),
        )
        records.append(record)
        typer.echo(f"  {name}: {median:.0f} ms, {facts['tokens_per_second']:,.1f} tokens/s")
    return records


def throughput(device: str, kv: str, results: Path) -> None:
    batches, tokens = SIZES[device]
    records = []
    memory = {"kv_memory": "1GB"} if device == "cpu" else {}
    with LLM(model_of(device), kv=kv, device=device, max_model_len=2048, **memory) as llm:
        for batch in batches:
            records += measured(llm, device, kv, batch, tokens)
    write_records(records, results / device_folder(device) / f"{OP}.jsonl")


def main(
    part: Annotated[str, typer.Option(help="valid, throughput or all")] = "all",
    device: Annotated[str, typer.Option(help="cpu or cuda, of throughput")] = "cpu",
    kv: Annotated[str, typer.Option(help="KV cache, of throughput")] = "dense",
    schemas: Annotated[int, typer.Option(help="requests with a schema, of valid")] = SCHEMAS,
    others: Annotated[int, typer.Option(help="and with a regex, and with a choice")] = OTHERS,
    results: Annotated[Path, typer.Option(help="folder for the result files")] = RESULTS,
) -> None:
    """Measure structured outputs."""
    if part in ("throughput", "all"):
        throughput(device, kv, results)
    if part in ("valid", "all") and not valid(schemas, others, results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)

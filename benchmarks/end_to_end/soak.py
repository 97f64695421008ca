"""A server under load whose clients leave: what is left afterwards, and whether answers are right.

    python -m benchmarks.end_to_end.soak --requests 500 --concurrency 32

Starts `gossamer serve`, sends prompts of WikiText-2 of which a fifth hang up in the middle and some
more at a random moment, and then holds the server to this: no error, no page in use, memory that
does not grow, and greedy answers equal to those of `LLM.generate`. Exit code 1 if not.
"""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gossamer.engine import LLM, SamplingParams
from gossamer.models import open_model
from gossamer.server.load import client, report
from gossamer.server.load.client import ClientResult
from gossamer.server.load.measures import record
from gossamer.server.load.schedule import Load, ScheduledRequest
from gossamer.server.load.target import Target, probe

TEXT = Path(__file__).parents[1] / "data/wikitext2-test-excerpt.txt"
START, SETTLE = 300.0, 30.0  # seconds
WAVES = 5  # memory is looked at between them
GROWTH = 0.02  # of resident memory, from the second wave to the last
TIE = 1e-3  # nats between the two likeliest tokens; batches of other sizes round differently


def schedule(ids: Sequence[int], load: Load, hasty: float) -> list[ScheduledRequest]:
    """Pieces of a text in place of random tokens. hasty: share that leaves at a random moment."""
    chance, planned = random.Random(load.seed), []
    for each in load.schedule(2):
        begin = chance.randrange(len(ids) - len(each.ids))
        patience = chance.uniform(0.0, 2.0) if chance.random() < hasty else None
        prompt = tuple(ids[begin : begin + len(each.ids)])
        planned.append(replace(each, ids=prompt, patience=patience))
    return planned


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, int, list[int]]]:
    """Its address, its process, and, in the end, its exit code."""
    command = [sys.executable, "-m", "gossamer.cli.main", "serve", *arguments, "--port", "0"]
    log = Path("build/soak.log")
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, stdout=file)
    ended: list[int] = []
    try:
        yield _address(log, process), process.pid, ended
        process.send_signal(signal.SIGTERM)
        ended.append(process.wait(SETTLE * 2))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    end = time.monotonic() + START
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"listening on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def resident(pid: int) -> int:
    """Bytes of memory of a process and of those that it started, shared ones counted for each."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    mine = int(found[1]) * 1024 if found else 0
    started = [p.read_text().split() for p in Path(f"/proc/{pid}/task").glob("*/children")]
    return mine + sum(resident(int(child)) for children in started for child in children)


def in_use(target: Target) -> int:
    """Pages and sequences that the server still has, once it had the time to notice."""
    end = time.monotonic() + SETTLE
    while True:
        now = probe(target.url).stats
        engines = now["engines"]
        pages = sum(e["stored_pages"]["used"] + e["dense_pages"]["used"] for e in engines)
        left = int(pages + now["in_flight"])
        if left == 0 or time.monotonic() > end:
            return left
        time.sleep(0.05)


def compare(
    llm: LLM, planned: Sequence[ScheduledRequest], seen: Sequence[ClientResult]
) -> tuple[int, int, list[float]]:
    """Answers equal to the engine's own, how many there are, and the margins of the others.

    A margin is the distance of the two likeliest tokens, in nats, where the texts part.
    """
    pairs = [(p, s) for p, s in zip(planned, seen, strict=True) if not s.left and not s.error]
    params = [
        SamplingParams(temperature=0, max_tokens=p.output, ignore_eos=True, logprobs=2)
        for p, _ in pairs
    ]
    outputs = llm.generate([list(p.ids) for p, _ in pairs], params)
    margins = []
    for (_, s), output in zip(pairs, outputs, strict=True):
        whole = output.outputs[0]
        if whole.text == s.text:
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(whole.text, s.text, strict=False)) if a != b),
            min(len(whole.text), len(s.text)),
        )
        margins.append(_margin(llm, whole, same))
    return len(pairs) - len(margins), len(pairs), margins


def _margin(llm: LLM, output: Any, characters: int) -> float:
    """Of the tokens about the place where the texts part: the smallest."""
    margins = []
    for i, entry in enumerate(output.logprobs):
        length = len(llm.tokenizer.decode(output.token_ids[: i + 1]))
        (_, first), (_, second) = entry.top[:2]
        margins.append(first - second)
        if length > characters:
            break
    return float(min(margins[-2:]))


async def waves(
    target: Target, pid: int, planned: Sequence[ScheduledRequest], load: Load
) -> tuple[list[ClientResult], list[int]]:
    """All requests in parts; memory after each."""
    seen, memory = list[ClientResult](), list[int]()
    size, start = -(-len(planned) // WAVES), time.perf_counter()
    for first in range(0, len(planned), size):
        part = planned[first : first + size]
        seen += await client.run(target, part, load.concurrency, start=start)
        memory.append(resident(pid))
        print(f"{len(seen)} requests, {memory[-1] / 1e6:,.0f} MB", flush=True)
    return seen, memory


def soak(
    model: Annotated[str, typer.Option(help="as for `gossamer serve`")] = "smollm2",
    kv: Annotated[str, typer.Option(help="KV cache")] = "sparse:k=32,v=32",
    requests: Annotated[int, typer.Option()] = 500,
    concurrency: Annotated[int, typer.Option()] = 32,
    leaving: Annotated[float, typer.Option(help="share that hangs up in the middle")] = 0.2,
    hasty: Annotated[float, typer.Option(help="and at a random moment")] = 0.05,
    inputs: Annotated[int, typer.Option("--input", help="prompt tokens at most")] = 100,
    outputs: Annotated[int, typer.Option("--output", help="new tokens at most")] = 32,
    kv_memory: Annotated[str, typer.Option(help="little: all of it is soon touched")] = "128MB",
    dtype: Annotated[
        str, typer.Option(help="answers are compared: of float32, to the token")
    ] = "float32",
    seed: Annotated[int, typer.Option()] = 0,
    results: Annotated[Path | None, typer.Option(help="folder for soak.json")] = None,
) -> None:
    load = Load(
        requests=requests,
        concurrency=concurrency,
        inputs=(16, inputs),
        outputs=(4, outputs),
        leaving=leaving,
        seed=seed,
    )
    source = open_model(model)
    ids = source.tokenizer()(TEXT.read_text())["input_ids"]
    planned = schedule(ids, load, hasty)
    with server(model, "--kv", kv, "--kv-memory", kv_memory, "--dtype", dtype) as (url, pid, ended):
        target = probe(url)
        seen, memory = asyncio.run(waves(target, pid, planned, load))
        left = in_use(target)
    with LLM(source, kv=kv, kv_memory=kv_memory, dtype=dtype) as llm:
        equal, answers, margins = compare(llm, planned, seen)
    found = record(target, load, seen) | {
        "what": "soak",
        "pages_in_use": left,
        "memory": memory,
        "exit_code": ended[0],
        "answers": answers,
        "equal_answers": equal,
        "margins_of_others": margins,
    }
    tell(found, results)


def tell(found: dict[str, Any], results: Path | None) -> None:
    """Print and write; exit code 1 if something is wrong."""
    print(report.summary(found))
    counts = f"{found['equal_answers']} of {found['answers']}"
    print(f"{counts} answers equal those of LLM.generate; others: {found['margins_of_others']}")
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        (results / "soak.json").write_text(json.dumps(found, indent=2) + "\n")
    if problems := wrong(found):
        print("\n".join(problems), file=sys.stderr)
        raise typer.Exit(1)


def wrong(found: dict[str, Any]) -> list[str]:
    """What the server is to blame for."""
    memory = found["memory"]
    growth = memory[-1] / memory[min(1, len(memory) - 1)] - 1
    checks = {
        f"errors: {found['errors']}": found["errors"],
        f"{found['pages_in_use']} pages or sequences are left": found["pages_in_use"],
        f"memory grew by {growth:.1%}": growth > GROWTH,
        f"the server ended with {found['exit_code']}": found["exit_code"],
        f"answers differ by more than rounding: {found['margins_of_others']}": [
            margin for margin in found["margins_of_others"] if margin > TIE
        ],
    }
    return [message for message, bad in checks.items() if bad]


if __name__ == "__main__":
    typer.run(soak)

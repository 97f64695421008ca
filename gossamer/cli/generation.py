"""What `gossamer generate` does, apart from its command line."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gossamer.cli.runs import Run, has_chat_template, loaded, timed_run, warm_up
from gossamer.engine import LLM, Delta, SamplingParams
from gossamer.engine.kv_cache import parse_kv
from gossamer.engine.prompts import Prompt

LOG_WIDTH = 140  # a log has room for whole rows
SPEC_DTYPE = torch.float32  # whether a spec is right does not depend on it


@dataclass(frozen=True)
class Job:
    """Prompts to run with each cache. chat: as messages; None if the model has a template."""

    model: str
    prompts: list[str]
    caches: list[str]
    sampling: dict[str, Any]
    engine: dict[str, Any]
    chat: bool | None = None


@dataclass(frozen=True)
class Measured:
    """One cache's run; kv in full, dtype and device as the engine chose them."""

    kv: str
    dtype: str
    device: str
    run: Run

    def text(self, prompt: int) -> str:
        return self.run.outputs[prompt].outputs[0].text

    def tokens(self, prompt: int) -> list[int]:
        return self.run.outputs[prompt].outputs[0].token_ids


def run(job: Job, *, as_json: bool) -> None:
    """Run and print. Raises what the engine raises for bad input."""
    params = SamplingParams(**job.sampling)
    for spec in job.caches:  # before minutes go into the ones before it
        parse_kv(spec, SPEC_DTYPE)
    found = [_measure(job, spec, params, streams=not as_json) for spec in job.caches]
    if as_json:
        typer.echo(json.dumps(_as_json(job, found), indent=2))
    elif len(found) > 1:
        for index in range(len(job.prompts)):
            _console().print(comparison(found, index))
    else:
        if len(job.prompts) > 1:
            for index, prompt in enumerate(job.prompts):
                typer.echo(f"{prompt!r}\n{found[0].text(index)}\n")
        typer.echo(summary(found[0].run), err=True)
    problems = [m.run.problem for m in found if m.run.problem]
    if problems:
        typer.echo(f"error: {problems[0]}", err=True)
        raise typer.Exit(1)


def _measure(job: Job, spec: str, params: SamplingParams, *, streams: bool) -> Measured:
    with loaded(job.model, kv=spec, **job.engine) as llm:
        prompts = _as_prompts(llm, job)
        warm_up(llm, prompts[0])
        stream = _Stream(len(prompts) == 1 and streams, spec if len(job.caches) > 1 else None)
        found = timed_run(llm, prompts, params, stream)
        stream.end()
        built = llm.engine.built
        dtype = str(built.dtype).removeprefix("torch.")
        return Measured(spec, dtype, str(built.device), found)


def _as_prompts(llm: LLM, job: Job) -> list[Prompt]:
    chat = has_chat_template(llm) if job.chat is None else job.chat
    if chat and not has_chat_template(llm):
        raise ValueError(f"{job.model}: has no chat template; leave --chat out")
    return [[{"role": "user", "content": p}] if chat else p for p in job.prompts]


class _Stream:
    """Text on stdout as it comes; when caches are compared, for people who watch only."""

    def __init__(self, shown: bool, heading: str | None) -> None:
        self._shown = shown and (heading is None or sys.stdout.isatty())
        if self._shown and heading is not None:
            Console().print(Text(heading, style="bold"))

    def __call__(self, delta: Delta) -> None:
        if self._shown:
            sys.stdout.write(delta.text)
            sys.stdout.flush()

    def end(self) -> None:
        if self._shown:
            sys.stdout.write("\n")


def summary(run: Run) -> str:
    """One line: speeds and memory."""
    words = [f"prefill {run.prefill_rate:,.1f} tok/s", f"decode {run.decode_rate:,.1f} tok/s"]
    if run.kv_bytes:
        words.append(f"KV {megabytes(run.kv_bytes)}")
    if run.saved > 0:
        words.append(f"{run.saved:.0%} saved")
    if run.cached_tokens:
        words.append(f"{run.cached_tokens} tokens cached")
    return ", ".join(words)


def comparison(found: Sequence[Measured], prompt: int) -> Table:
    """A column per cache."""
    table = Table("", show_lines=True)
    for measured in found:
        table.add_column(escape(measured.kv), overflow="fold")
    table.add_row("text", *(Text(m.text(prompt).strip()) for m in found))
    table.add_row("prefill", *(f"{m.run.prefill_rate:,.1f} tok/s" for m in found))
    table.add_row("decode", *(f"{m.run.decode_rate:,.1f} tok/s" for m in found))
    table.add_row("KV cache", *(megabytes(m.run.kv_bytes) for m in found))
    table.add_row(f"plain {found[0].dtype}", *(megabytes(m.run.kv_bytes_dense) for m in found))
    table.add_row("saved", *(f"{m.run.saved:.1%}" for m in found))
    first = found[0].tokens(prompt)
    same = (f"first {equal_tokens(first, m.tokens(prompt))} of {len(first)}" for m in found[1:])
    table.add_row("same tokens", "", *same)
    return table


def equal_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.2f} MB"


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=LOG_WIDTH)


def _as_json(job: Job, found: list[Measured]) -> dict[str, Any]:
    return {"model": job.model, "runs": [_json_run(job, found, m) for m in found]}


def _json_run(job: Job, found: list[Measured], measured: Measured) -> dict[str, Any]:
    run = measured.run
    outputs = [
        {
            "prompt": prompt,
            "text": measured.text(index),
            "token_ids": measured.tokens(index),
            "finish_reason": run.outputs[index].outputs[0].finish_reason,
            "prompt_tokens": len(run.outputs[index].prompt_token_ids),
            "cached_tokens": run.outputs[index].cached_tokens,
            "equal_tokens": equal_tokens(found[0].tokens(index), measured.tokens(index)),
        }
        for index, prompt in enumerate(job.prompts)
    ]
    return {
        "kv": measured.kv,
        "dtype": measured.dtype,
        "device": measured.device,
        "prefill_tokens_per_second": run.prefill_rate,
        "decode_tokens_per_second": run.decode_rate,
        "kv_bytes": run.kv_bytes,
        "kv_bytes_dense": run.kv_bytes_dense,
        "saved": run.saved,
        "outputs": outputs,
    }

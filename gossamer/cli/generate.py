"""`gossamer generate`: prompts in, text out; with several KV caches, side by side."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gossamer.cli import options as o

if TYPE_CHECKING:
    from gossamer.engine import LLM, Delta, SamplingParams
    from gossamer.engine.prompts import Prompt
    from gossamer.workloads.generation import Generation


def generate(
    model: o.Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Text to continue, or to answer", metavar="PROMPT")
    ] = None,
    kv: o.Caches = None,
    max_tokens: o.MaxTokens = 128,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    seed: o.Seed = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Apply the chat template, or not; default: if the model has one",
        ),
    ] = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    calibration_text: o.CalibrationText = None,
    tensor_parallel_size: o.TensorParallel = 1,
    launcher: o.Launcher = "auto",
    weights: o.Weights = "auto",
    random_weights: o.RandomWeights = False,
    lora: o.Lora = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue after the end-of-text token")
    ] = False,
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", help="Read another prompt from a UTF-8 file; - for stdin"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON")] = False,
) -> None:
    """Generate text from prompts. Repeat --kv to compare KV caches side by side."""
    with o.one_line_errors():
        options = GenerateOptions(
            model=model,
            prompts=_prompts(prompts or [], prompt_file),
            caches=kv or ["dense"],
            sampling=o.given(
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                ignore_eos=ignore_eos,
            ),
            engine=o.given(
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                kv_memory=kv_memory,
                calibration=calibration,
                calibration_text=calibration_text,
                tensor_parallel_size=tensor_parallel_size,
                launcher=launcher,
                weights=weights,
                random_weights=random_weights,
                lora=o.adapter(lora),
            ),
            chat=chat,
        )
        _generate(options, as_json=as_json)


@dataclass(frozen=True)
class GenerateOptions:
    """Prompts to run with each cache. chat: None to use a chat template if the model has one."""

    model: str
    prompts: list[str]
    caches: list[str]
    sampling: dict[str, Any]
    engine: dict[str, Any]
    chat: bool | None = None


@dataclass(frozen=True)
class CacheResult:
    """What one cache did; dtype and device as the engine chose them."""

    kv: str
    dtype: str
    device: str
    generation: "Generation"

    def text(self, prompt: int) -> str:
        return self.generation.outputs[prompt].outputs[0].text

    def tokens(self, prompt: int) -> list[int]:
        return self.generation.outputs[prompt].outputs[0].token_ids


def _prompts(prompts: list[str], file: Path | None) -> list[str]:
    if file is not None:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        prompts = [*prompts, o.utf8(content, file)]
    if not prompts:
        raise ValueError("no prompt; give one as an argument or with --prompt-file")
    return prompts


def _generate(options: GenerateOptions, *, as_json: bool) -> None:
    """Run and print. Raises what the engine raises for bad input."""
    import torch

    from gossamer.engine import SamplingParams
    from gossamer.kv import KVConfig
    from gossamer.kv.auto import Preset

    params = SamplingParams(**options.sampling)
    for spec in options.caches:  # a wrong one is told before minutes go into the others
        Preset.parse(spec) or KVConfig.of(spec, torch.float32)
    results = [_run_cache(options, kv, params, streams=not as_json) for kv in options.caches]
    if as_json:
        runs = [_json_of(options.prompts, result, results[0]) for result in results]
        typer.echo(json.dumps({"model": options.model, "runs": runs}, indent=2))
    elif len(results) > 1:
        for index in range(len(options.prompts)):
            o.stdout_console().print(comparison(results, index))
    else:
        if len(options.prompts) > 1:
            for index, prompt in enumerate(options.prompts):
                typer.echo(f"{prompt!r}\n{results[0].text(index)}\n")
        typer.echo(results[0].generation.summary(), err=True)
    errors = [result.generation.error for result in results if result.generation.error]
    if errors:
        typer.echo(f"error: {errors[0]}", err=True)
        raise typer.Exit(1)


def _run_cache(
    options: GenerateOptions, kv: str, params: "SamplingParams", *, streams: bool
) -> CacheResult:
    from gossamer.workloads.generation import timed_generation
    from gossamer.workloads.loading import loaded, warm_up

    with loaded(options.model, kv=kv, **options.engine) as llm:
        prompts = _as_prompts(llm, options)
        warm_up(llm, prompts[0])
        shown = len(prompts) == 1 and streams
        printer = _Printer(shown, kv if len(options.caches) > 1 else None)
        found = timed_generation(llm, prompts, params, printer, lora=next(iter(llm.loras), None))
        printer.end()
        built = llm.engine.built
        dtype = str(built.dtype).removeprefix("torch.")
        return CacheResult(kv, dtype, str(built.device), found)


def _as_prompts(llm: "LLM", options: GenerateOptions) -> "list[Prompt]":
    from gossamer.workloads.loading import has_chat_template

    chat = has_chat_template(llm) if options.chat is None else options.chat
    if chat and not has_chat_template(llm):
        raise ValueError(f"{options.model}: has no chat template; omit --chat")
    return [[{"role": "user", "content": p}] if chat else p for p in options.prompts]


class _Printer:
    """Text on stdout as it comes; when caches are compared, in terminals only."""

    def __init__(self, shown: bool, heading: str | None) -> None:
        self._shown = shown and (heading is None or sys.stdout.isatty())
        if self._shown and heading is not None:
            Console().print(Text(heading, style="bold"))

    def __call__(self, delta: "Delta") -> None:
        if self._shown:
            sys.stdout.write(delta.text)
            sys.stdout.flush()

    def end(self) -> None:
        if self._shown:
            sys.stdout.write("\n")


def comparison(results: Sequence[CacheResult], prompt: int) -> Table:
    """A column per cache."""
    table, runs = Table("", show_lines=True), [result.generation for result in results]
    for result in results:
        table.add_column(escape(result.kv), overflow="fold")
    table.add_row("text", *(Text(result.text(prompt).strip()) for result in results))
    table.add_row("prefill", *(f"{run.prefill_rate:,.1f} tok/s" for run in runs))
    table.add_row("decode", *(f"{run.decode_rate:,.1f} tok/s" for run in runs))
    table.add_row("KV cache", *(f"{run.kv_bytes / 1e6:,.2f} MB" for run in runs))
    plain = (f"{run.kv_bytes_dense / 1e6:,.2f} MB" for run in runs)
    table.add_row(f"plain {results[0].dtype}", *plain)
    table.add_row("saved", *(f"{run.saved:.1%}" for run in runs))
    first = results[0].tokens(prompt)
    same = (f"first {equal_tokens(first, r.tokens(prompt))} of {len(first)}" for r in results[1:])
    table.add_row("same tokens", "", *same)
    return table


def equal_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens are the same before the first that is not."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _json_of(prompts: list[str], result: CacheResult, first: CacheResult) -> dict[str, Any]:
    run = result.generation
    outputs = [
        {
            "prompt": prompt,
            "text": result.text(index),
            "token_ids": result.tokens(index),
            "finish_reason": run.outputs[index].outputs[0].finish_reason,
            "prompt_tokens": len(run.outputs[index].prompt_token_ids),
            "cached_tokens": run.outputs[index].cached_tokens,
            "equal_tokens": equal_tokens(first.tokens(index), result.tokens(index)),
        }
        for index, prompt in enumerate(prompts)
    ]
    return {
        "kv": result.kv,
        "dtype": result.dtype,
        "device": result.device,
        "prefill_tokens_per_second": run.prefill_rate,
        "decode_tokens_per_second": run.decode_rate,
        "kv_bytes": run.kv_bytes,
        "kv_bytes_dense": run.kv_bytes_dense,
        "saved": run.saved,
        "outputs": outputs,
    }

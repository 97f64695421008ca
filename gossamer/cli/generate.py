"""`gossamer generate`: prompts in, text out; with several KV caches, side by side."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli import options as o

Prompts = Annotated[list[str] | None, typer.Argument(help="text to go on from", metavar="PROMPT")]


def generate(
    model: o.Model,
    prompts: Prompts = None,
    kv: o.Caches = None,
    max_tokens: o.MaxTokens = 128,
    temperature: o.Temperature = 0.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    seed: o.Seed = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw", help="as a chat message; default: if the model is made for it"
        ),
    ] = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    tensor_parallel_size: o.TensorParallel = 1,
    random_weights: o.RandomWeights = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="go on to --max-tokens")] = False,
    prompt_file: Annotated[
        Path | None, typer.Option("--prompt-file", help="one more prompt: UTF-8 text, - for stdin")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="everything as JSON")] = False,
) -> None:
    """Generate text. With --kv several times, compare what each cache writes, takes and saves."""
    # torch._dynamo comes with the engine and takes seconds to import; `doctor` has no use for it.
    from gossamer.cli import generation  # noqa: PLC0415

    with o.one_line_errors():
        job = generation.Job(
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
                tensor_parallel_size=tensor_parallel_size,
                random_weights=random_weights,
            ),
            chat=chat,
        )
        generation.run(job, as_json=as_json)


def _prompts(prompts: list[str], file: Path | None) -> list[str]:
    if file is not None:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        try:
            prompts = [*prompts, content.decode("utf-8")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: not UTF-8 text: {error}") from None
    if not prompts:
        raise ValueError("there is no prompt; must be an argument or --prompt-file")
    return prompts

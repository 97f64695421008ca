"""Options that several commands share, and how their mistakes are told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gossamer.kv.config import KVConfig

KV_HELP = "KV cache: dense, sparse:k=32,v=32, ..., or a file of `gossamer frontier`"


def spec_of(text: str, model: str | None = None) -> str:
    """The KV spec that --kv names: itself, or what a .json file of `gossamer frontier` recommends.

    Warns where the file is about another model. Raises ValueError, OSError.
    """
    if not text.endswith(".json"):  # which no spec does
        return text
    try:
        content = json.loads(Path(text).read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8
        raise ValueError(f"{text}: not JSON: {error}") from None
    spec = content.get("kv") if isinstance(content, dict) else None
    if not isinstance(spec, str):
        raise ValueError(f'{text}: must be an object with a KV spec as its "kv"')
    try:
        KVConfig.parse(spec)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None
    made_for = content.get("model")
    # Folders differ between machines; what a model is called in them seldom does.
    if model and isinstance(made_for, str) and Path(made_for).name != Path(model).resolve().name:
        typer.echo(f"warning: {text} was made for {made_for}, not for {model}", err=True)
    return spec


def specs_of(context: typer.Context, given: Any) -> Any:
    """What a --kv option gets: a spec, a list of them, or nothing."""
    model = context.params.get("model")
    with one_line_errors():
        if isinstance(given, str):
            return spec_of(given, model)
        return given and [spec_of(text, model) for text in given]


Model = Annotated[
    str,
    typer.Argument(
        help="smollm2, a Hugging Face directory or a .gguf file",
        metavar="MODEL",
        is_eager=True,  # known before --kv is looked at
    ),
]
Caches = Annotated[
    list[str] | None,
    typer.Option("--kv", metavar="SPEC", help=f"{KV_HELP}; repeatable", callback=specs_of),
]
Cache = Annotated[str, typer.Option("--kv", metavar="SPEC", help=KV_HELP, callback=specs_of)]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="new tokens at most")]
Temperature = Annotated[float, typer.Option("--temperature", help="0: the likeliest token")]
TopP = Annotated[float, typer.Option("--top-p", help="sample from this much probability")]
TopK = Annotated[int, typer.Option("--top-k", help="sample from so many tokens; 0: all")]
Seed = Annotated[int | None, typer.Option("--seed", help="the same seed, the same text")]
DType = Annotated[str, typer.Option("--dtype", help="float32, float16, bfloat16 or auto")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ... or auto")]
MaxModelLen = Annotated[
    int | None, typer.Option("--max-model-len", help="longest sequence, prompt and output")
]
KVMemory = Annotated[
    str | None, typer.Option("--kv-memory", metavar="BYTES", help="of the KV cache: 2GiB, 40GB")
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="file of `gossamer calibrate`")
]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel-size", metavar="N", help="GPUs, or processes on a CPU")
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="the model's config is enough; its words are not")
]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="FOLDER", help="write records below it")
]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Bad input ends the command with `error: ...` on stderr and exit code 2."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        raise failed(error) from None
    except RuntimeError as error:  # torch has no class of its own for a CPU without memory
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate" not in str(error):
            raise
        raise failed(error) from None


def failed(error: BaseException) -> typer.Exit:
    """Say what is wrong, in one line."""
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    return typer.Exit(2)


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value; the engine has its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def at_least(name: str, value: int, least: int) -> None:
    """Raises ValueError."""
    if value < least:
        raise ValueError(f"--{name} is {value}; must be at least {least}")

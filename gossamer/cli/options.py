"""Options that several commands share, and how their mistakes are told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

Model = Annotated[
    str, typer.Argument(help="smollm2, a Hugging Face directory or a .gguf file", metavar="MODEL")
]
Caches = Annotated[
    list[str] | None,
    typer.Option("--kv", metavar="SPEC", help="KV cache: dense, sparse:k=32,v=32, ...; repeatable"),
]
Cache = Annotated[
    str, typer.Option("--kv", metavar="SPEC", help="KV cache: dense, sparse:k=32,v=32, ...")
]
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

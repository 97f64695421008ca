"""Option types and helpers that several commands share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from gossamer.kv.auto import Preset
from gossamer.kv.config import KVConfig

LOG_WIDTH = 140  # a log has room for whole rows
KV_HELP = (
    "KV cache: auto, auto:25%, auto:quality, auto:speed, dense, coded:23.5%, sparse:k=32,v=32, "
    "..., or a file from `gossamer frontier`"
)


def spec_of(text: str, model: str | None = None) -> str:
    """The KV spec that --kv names: itself, or what a .json file of `gossamer frontier` recommends.

    Warns if the file is about another model. Raises ValueError, OSError.
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
        Preset.parse(spec) or KVConfig.parse(spec)
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
        help="Model: smollm2, a Hugging Face directory or a .gguf file",
        metavar="MODEL",
        is_eager=True,  # known before --kv is looked at
    ),
]
Caches = Annotated[
    list[str] | None,
    typer.Option("--kv", metavar="SPEC", help=f"{KV_HELP}; repeatable", callback=specs_of),
]
Cache = Annotated[str, typer.Option("--kv", metavar="SPEC", help=KV_HELP, callback=specs_of)]
MaxTokens = Annotated[
    int, typer.Option("--max-tokens", help="Maximum number of tokens to generate")
]
Temperature = Annotated[
    float, typer.Option("--temperature", help="Sampling temperature; 0 for greedy decoding")
]
TopP = Annotated[
    float, typer.Option("--top-p", help="Cumulative probability of the tokens to sample from")
]
TopK = Annotated[
    int, typer.Option("--top-k", help="Number of top tokens to sample from; 0 for all")
]
Seed = Annotated[int | None, typer.Option("--seed", help="Random seed for sampling")]
DType = Annotated[
    str, typer.Option("--dtype", help="Data type: float32, float16, bfloat16 or auto")
]
Device = Annotated[str, typer.Option("--device", help="Device: cpu, cuda, cuda:1, ... or auto")]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", help="Maximum length of a sequence, prompt and output"),
]
MaxNumSeqs = Annotated[int, typer.Option(help="Maximum number of running sequences")]
MaxBody = Annotated[
    str, typer.Option("--max-body", metavar="BYTES", help="Maximum size of a request body")
]
ServedName = Annotated[
    str | None,
    typer.Option("--served-model-name", help="Model name in requests; default: the model's own"),
]
NoPrefixCaching = Annotated[
    bool, typer.Option("--no-prefix-caching", help="Disable prefix caching")
]
KVMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="BYTES", help="Memory for the KV cache, e.g. 2GiB or 40GB"),
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="Calibration file from `gossamer calibrate`")
]
CalibrationText = Annotated[
    Path | None,
    typer.Option(
        "--calibration-text",
        metavar="FILE",
        help="Text to calibrate the model on at its first use; default: what the model writes",
    ),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size",
        metavar="N",
        help="Number of GPUs, or of processes on a CPU, to split the model across",
    ),
]
Launcher = Annotated[
    str,
    typer.Option(
        "--launcher", help="What starts the parts of a split model: spawn, torchrun, ray or auto"
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights",
        help="Weights in memory: float, int8, fp8, int4 or auto (as the checkpoint has them)",
    ),
]
RandomWeights = Annotated[
    bool,
    typer.Option("--random-weights", help="Use random weights; only the model's config is read"),
]
Loras = Annotated[
    list[str] | None,
    typer.Option("--lora", metavar="NAME=DIR", help="LoRA adapter (PEFT); repeatable"),
]
Lora = Annotated[
    Path | None, typer.Option("--lora", metavar="DIR", help="LoRA adapter (PEFT) to apply")
]
MaxLoras = Annotated[
    int | None, typer.Option(help="Maximum number of LoRA adapters; default: those of --lora")
]
MaxLoraRank = Annotated[
    int | None,
    typer.Option(help="Maximum rank of LoRA adapters; default: the largest of --lora, or 16"),
]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR", help="Write records to this directory")
]
ResultsFile = Annotated[
    Path | None,
    typer.Option("--results", metavar="FILE", help="Keep scores in this file and resume from it"),
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="DIR", help="Write figures to this directory")
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="Requests by name: mixed, small, chat or long; other options change its numbers",
    ),
]
Prefix = Annotated[
    int | None,
    typer.Option("--prefix", help="Shared prefix of the prompts in tokens, on top of --input"),
]
Prefixes = Annotated[int | None, typer.Option("--prefixes", help="Number of different prefixes")]
Eager = Annotated[
    bool, typer.Option("--eager", help="No CUDA graphs and no warm-up before the first request")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown")]


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


def failed(error: BaseException, code: int = 2) -> typer.Exit:
    """Print the error in one line; what to raise."""
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    return typer.Exit(code)


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value; the engine has its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def adapter(folder: Path | None) -> dict[str, Path] | None:
    """The only one of an engine, under a name that nobody sees."""
    return None if folder is None else {"adapter": folder}


def adapters(texts: list[str] | None) -> dict[str, Path] | None:
    """Folders by name, of NAME=DIR. Raises ValueError."""
    found: dict[str, Path] = {}
    for text in texts or ():
        name, equals, folder = text.partition("=")
        if not (name and equals and folder):
            raise ValueError(f"--lora is {text!r}; must be NAME=DIR")
        if name in found:
            raise ValueError(f"--lora has {name!r} twice; must be different names")
        found[name] = Path(folder).absolute()  # also for processes that are elsewhere
    return found or None


def at_least(name: str, value: int, least: int) -> None:
    """Raises ValueError."""
    if value < least:
        raise ValueError(f"--{name} is {value}; must be at least {least}")


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Positive integers separated by commas. Raises ValueError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"--{name} is {text!r}; must be positive integers like 1,8")
    return tuple(int(part) for part in parts)


def bounds(name: str, text: str) -> tuple[int, int]:
    """MIN,MAX, or one number for both. Raises ValueError."""
    found = numbers(name, text)
    if len(found) > 2 or found[0] > found[-1]:
        raise ValueError(f"--{name} is {text!r}; must be MIN,MAX")
    return found[0], found[-1]


def mix_given(
    requests: int | None,
    inputs: str | None,
    outputs: str | None,
    prefix: int | None,
    prefixes: int | None,
) -> dict[str, Any]:
    """The numbers of a RequestMix that options give. Raises ValueError."""
    return given(
        requests=requests,
        inputs=None if inputs is None else bounds("input", inputs),
        outputs=None if outputs is None else bounds("output", outputs),
        prefix=prefix,
        prefixes=prefixes,
    )


def rates(name: str, text: str) -> tuple[float, ...]:
    """Different positive numbers separated by commas. Raises ValueError."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not found or len(set(found)) < len(found) or not all(0 < x < float("inf") for x in found):
        raise ValueError(f"--{name} is {text!r}; must be different numbers above 0 like 1,2,4")
    return found


def utf8(content: bytes, name: object) -> str:
    """The text of a file. Raises ValueError."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text: {error}") from None


def stdout_console(log_width: int = LOG_WIDTH) -> Console:
    """As wide as the terminal, or as a log can be."""
    console = Console()
    return console if console.is_terminal else Console(width=log_width)

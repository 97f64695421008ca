"""`gossamer tune model`: find the fastest fusion plan of a model. `gossamer tune list`: all."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import typer

from gossamer.cli import options as o


def model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="bert-base, bert-large, gpt2, llama-1b, t5-base, vit-b (random weights), "
            "or a Hugging Face directory",
        ),
    ],
    shape: Annotated[
        list[str], typer.Option("--shape", help="Batch and tokens, as in 8x512; repeatable")
    ],
    mask: Annotated[
        str | None,
        typer.Option(help="Mask of self-attention by name: see `gossamer masks list`"),
    ] = None,
    budget: Annotated[str, typer.Option(help="Time for each shape, as in 60s or 5m")] = "60s",
    mode: Annotated[
        str | None,
        typer.Option(help="Mode of torch.compile: reduce-overhead for CUDA graphs, max-autotune"),
    ] = None,
    device: o.Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="Data type: float32, float16, bfloat16; auto: float16 on a GPU")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Random seed of the search")] = 0,
) -> None:
    """Time fusion plans and kernels of a model at given shapes; keep the fastest."""
    with o.one_line_errors():
        seconds = _seconds(budget)
        shapes = [_shape(text) for text in shape]
        where = tuned_device(device)
        of_weights = tuned_dtype(dtype, where)
        for batch, n in shapes:
            _tune(name, batch, n, mask, seconds, mode, where, of_weights, seed)


def _tune(
    name: str,
    batch: int,
    n: int,
    mask: str | None,
    seconds: float,
    mode: str | None,
    device: Any,
    dtype: Any,
    seed: int,
) -> None:
    from gossamer.fusion.backend import Options
    from gossamer.fusion.tuning import tune
    from gossamer.masks import named
    from gossamer.workloads.transformers_models import build, inputs_of, tokens_of

    built = build(name, n, dtype, device)
    of_model = None if mask is None else named(mask, tokens_of(built, n))
    options = Options(mask=of_model, mode=mode)
    inputs = inputs_of(built, batch, n)
    with _bar() as show:
        outcome = tune(built, (), inputs, options, seconds, seed=seed, show=show)
    for tuned in outcome.graphs:
        spent = ", ".join(f"{what} {took:.1f} s" for what, took in tuned.seconds.items())
        tried = ", ".join(f"{count} x {what}" for what, count in tuned.trials.items())
        typer.echo(
            f"{name} {batch}x{n}: {tuned.us:.0f} us, unfused {tuned.unfused_us:.0f} us "
            f"({tuned.unfused_us / tuned.us:.2f}x), plan {tuned.plan.key}"
        )
        typer.echo(f"  time: {spent}; tried: {tried or 'nothing'}")
    if not outcome.graphs:
        raise ValueError(f"{name}: there is nothing to fuse in it")
    if not outcome.kept:
        typer.echo("warning: the plan is not kept", err=True)


def cached() -> None:
    """List tuned plans and measured attention kernels."""
    from gossamer.attention.coefficient_files import cache_folder
    from gossamer.fusion.cache import PlanCache

    cache = PlanCache()
    for entry in cache.entries():
        where = ", ".join(f"{k} {v}" for k, v in entry.machine.items())
        made = datetime.fromtimestamp(entry.made).strftime("%Y-%m-%d %H:%M")
        gain = entry.facts.get("unfused_us", 0) / (entry.facts.get("us") or 1)
        typer.echo(f"{made}  {entry.shapes}  {gain:.2f}x  plan {entry.plan.key}  {where}")
    for path in sorted((cache_folder() / "attention").glob("*.json")):
        typer.echo(f"attention  {path.stem}")
    typer.echo(f"in {cache_folder()}")


@contextmanager
def _bar() -> Iterator[Callable[[float, str], None]]:
    """A progress bar on stderr; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        task = progress.add_task("tuning", total=1.0)

        def show(share: float, what: str) -> None:
            progress.update(task, completed=share, description=what[:40].ljust(40))

        yield show


def _seconds(text: str) -> float:
    """60s, 5m or a number of seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|)", text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"--budget is {text!r}; must be a time above 0 like 60s or 5m")
    return float(match[1]) * (60 if match[2] == "m" else 1)


def _shape(text: str) -> tuple[int, int]:
    """Batch and tokens. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if match is None:
        raise ValueError(f"--shape is {text!r}; must be a batch and tokens like 8x512")
    return int(match[1]), int(match[2])


def tuned_device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise ValueError(f"--device is {name!r}; must be cpu, cuda, cuda:1, ...: {line}") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"--device is {name!r}; must be cpu, cuda, cuda:1, ...")
    return found


def tuned_dtype(name: str, device: Any) -> Any:
    import torch

    if name == "auto":
        name = "float16" if device.type == "cuda" else "float32"
    if name not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"--dtype is {name!r}; must be float16, bfloat16, float32 or auto")
    return getattr(torch, name)

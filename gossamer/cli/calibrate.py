"""`gossamer calibrate`: measure a model's bases and rank weights on a text."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gossamer.cli import options as o
from gossamer.integrations.calibrating import calibration_of, measure
from gossamer.integrations.expected_loss import expected_losses
from gossamer.integrations.transformers import load_model
from gossamer.integrations.windows import middle
from gossamer.kv.calibration import Calibration
from gossamer.kv.moments import Bases, energy_in_top_half
from gossamer.models.embedded import EMBEDDED, embedded_path

JUDGED = 1024  # tokens that caches are judged on
CHARACTERS_PER_TOKEN = 8  # more than text in most languages has; too few only costs another try
# Cutting a text changes tokens near the cut: those of the word that was cut (WordPiece: up to 100),
# merges and normalisation across it, special tokens at the end. Tokens are taken for final when at
# least this many follow; a tokenizer that looks further ahead than that would be cut wrongly.
MARGIN = 256


def calibrate(
    model: o.Model,
    text: Annotated[Path, typer.Option("--text", help="UTF-8 text to calibrate on")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Safetensors file to write")
    ],
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of the text to use")] = 8192,
    context: Annotated[int, typer.Option("--context", help="Tokens per window")] = 2048,
    device: Annotated[str, typer.Option("--device", help="Device: cpu, cuda, cuda:1, ...")] = "cpu",
) -> None:
    """Calibrate a model on a text: bases and rank weights for its K and V."""
    with o.one_line_errors():
        _check_before_loading(output, tokens, context)
        content = text.read_bytes()
        path = embedded_path(model) if model in EMBEDDED else Path(model)
        loaded, tokenizer = load_model(path, device=device)
        ids = _first_tokens(tokenizer, content, text, tokens, JUDGED)
        bases = _measure(loaded, ids[:tokens], context)
        digest = hashlib.sha256(content).hexdigest()
        calibration = calibration_of(loaded, bases, text_sha256=digest)
        window = ids[-min(context, JUDGED) :]  # beyond the tokens above, where the text has some
        start = middle(loaded, len(window))
        losses = expected_losses(loaded, [window], calibration, start=start)
        manifest = replace(calibration.manifest, losses=losses)
        calibration = replace(calibration, manifest=manifest)
        calibration.save(output)
    _print(calibration, bases, output)


def _check_before_loading(output: Path, tokens: int, context: int) -> None:
    """What would otherwise go wrong after minutes of work."""
    o.at_least("tokens", tokens, 1)
    o.at_least("context", context, 1)
    if output.is_dir():
        raise ValueError(f"{output}: is a directory; --output must be a file")
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ValueError(f"{output}: {output.parent} is not a directory that can be written to")


def _first_tokens(
    tokenizer: Any, content: bytes, path: Path, wanted: int, more: int = 0
) -> list[int]:
    """The first tokens of the whole text, from a prefix that has at least MARGIN tokens more.

    more: how many beyond those that are wanted, if the text has them.
    """
    decoded = o.utf8(content, path)
    length = CHARACTERS_PER_TOKEN * (wanted + more)
    ids: list[int] = tokenizer(decoded[:length])["input_ids"]
    while length < len(decoded) and len(ids) < wanted + more + MARGIN:
        length *= 2
        ids = tokenizer(decoded[:length])["input_ids"]
    if len(ids) < wanted:
        raise ValueError(f"{path}: has {len(ids)} tokens; --tokens is {wanted}")
    return ids[: wanted + more]


def _measure(model: Any, ids: list[int], context: int) -> Bases:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:

        def bar(name: str) -> Callable[[int], None]:
            return partial(progress.advance, progress.add_task(name, total=len(ids)))

        return measure(model, ids, context=context, progress=bar)


def _print(calibration: Calibration, bases: Bases, output: Path) -> None:
    manifest = calibration.manifest
    table = Table(show_header=False, box=None)
    table.add_row("model", Text(manifest.model))
    table.add_row("attention", str(manifest.shape))
    table.add_row("tokens", str(manifest.tokens))
    for name, energies in (("K", bases.k_energies), ("V", bases.v_energies)):
        share = f"{energy_in_top_half(energies):.1%} of the energy in half of the coordinates"
        table.add_row(name, share)
    Console().print(table)
    typer.echo(f"wrote {output}")  # not through rich, which would wrap a long path

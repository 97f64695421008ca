"""`gossamer check-op NAME`: is an op ready to ship?"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gossamer.bench.record import describe_device, revision
from gossamer.cli.options import one_line_errors
from gossamer.kit.checklist import Answer, check
from gossamer.kit.checkout import this_checkout
from gossamer.kit.measuring import Running, best_device
from gossamer.ops import OPS


def check_op(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="ops")] = None,
    device: Annotated[
        str, typer.Option(help="cpu or cuda; auto: where the op is at its best")
    ] = "auto",
    every: Annotated[bool, typer.Option("--all", help="all ops")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="small sizes, few repetitions")] = False,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="speeds from result files there, where it has them"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="the answers as JSON, too")
    ] = None,
) -> None:
    """Check ops: right, 1.2x eager, good across sizes, small, with fallback, profiled, documented.

    Needs a checkout: benchmarks and pages are not in a wheel. Exit code 0: all pass; 1: not all; 2:
    bad arguments.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells each start and end of a profile
    with one_line_errors():
        wanted = _wanted(names or [], every)
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"--device is {device!r}; must be cpu, cuda or auto")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device is cuda; no CUDA GPU is visible")
        this_checkout()
        places = {name: best_device(name) if device == "auto" else device for name in wanted}
        if results is not None and not results.is_dir():
            raise ValueError(f"--results is {results}; must be a folder")
        measures = {
            name: Running(name, where, quick=quick, results=results)
            for name, where in places.items()
        }
    console = Console()
    if not console.is_terminal:  # a log has room for whole rows
        console = Console(width=160)
    found: dict[str, dict[str, Answer]] = {}
    for name, measure in measures.items():
        with console.status(name):
            found[name] = check(measure, measure.suite.target)
        console.print(answers_table(name, measure.device, found[name]))
        if measure.source:
            console.print(Text(f"speed: {measure.source}", style="dim"))
    if output is not None:
        output.write_text(json.dumps(_as_json(measures, found), indent=1) + "\n")
    failed = [name for name, answers in found.items() if not _passed(answers)]
    if failed:
        console.print(Text(f"not ready: {', '.join(failed)}", style="bold red"))
        raise typer.Exit(1)
    console.print(Text(f"ready: {', '.join(found)}", style="green"))


def _wanted(names: list[str], every: bool) -> list[str]:
    if bool(names) == every:
        raise ValueError("give names of ops, or --all")
    unknown = [name for name in names if name not in OPS]
    if unknown:
        raise ValueError(f"there is no op {unknown[0]!r}; must be one of {', '.join(OPS)}")
    return names or list(OPS)


def _passed(answers: dict[str, Answer]) -> bool:
    return all(answer.passed for answer in answers.values())


def answers_table(name: str, device: str, answers: dict[str, Answer]) -> Table:
    """One row per question."""
    table = Table(title=f"{name} on {describe_device(device)}", title_justify="left")
    table.add_column("question", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("figures", overflow="fold")
    for question, answer in answers.items():
        passed = Text("yes", style="green") if answer.passed else Text("no", style="bold red")
        table.add_row(question, passed, Text(answer.figures))
    return table


def _as_json(
    measures: dict[str, Running], found: dict[str, dict[str, Answer]]
) -> dict[str, object]:
    return {
        name: {
            "device": describe_device(measures[name].device),
            "revision": revision(),
            "speed": measures[name].source,
            "passed": _passed(answers),
            "answers": {question: asdict(answer) for question, answer in answers.items()},
        }
        for name, answers in found.items()
    }

"""`gossamer check-op NAME`: is an op ready to ship?"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table
from rich.text import Text

from gossamer.bench.record import describe_device, revision
from gossamer.cli import options as o
from gossamer.kit.checklist import Answer, check
from gossamer.kit.checkout import this_checkout
from gossamer.kit.measuring import Running, best_device
from gossamer.ops import OPS


def check_op(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Ops to check")] = None,
    device: Annotated[
        str, typer.Option(help="Device: cpu, cuda, or auto for the op's best one")
    ] = "auto",
    every: Annotated[bool, typer.Option("--all", help="Check all ops")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes and few repetitions")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Take speeds from the records in this directory"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the answers as JSON")
    ] = None,
) -> None:
    """Check whether ops are ready to ship: correctness, speed, memory, fallback, profile, docs.

    Needs a checkout of Gossamer. Exit code 1 if a check fails, 2 for bad arguments.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells each start and end of a profile
    with o.one_line_errors():
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
    console = o.stdout_console(160)
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

"""`gossamer eval`: what KV caches cost in quality, measured with the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gossamer.cli import options as o

if TYPE_CHECKING:
    from gossamer.evaluation.experiment import Result
    from gossamer.kv.speed import DecodeSpeed

Number = TypeVar("Number", int, float)

Tasks = Annotated[
    str | None,
    typer.Option("--tasks", metavar="NAME,...", help="Tasks to run, instead of a suite"),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        metavar="NAME",
        help="default: perplexity, lookup, needle and copying; long: tasks of --lengths tokens",
    ),
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        "--peer", metavar="SPEC", help="Other method, e.g. kivi:4 or snapkv:0.25; repeatable"
    ),
]
LongBench = Annotated[
    Path | None,
    typer.Option("--longbench", metavar="DIR", help="LongBench data, for the task longbench"),
]
Text = Annotated[
    Path | None,
    typer.Option(
        "--text", help="Text for perplexity and agreement; default in a checkout: WikiText-2"
    ),
]
Filler = Annotated[
    Path | None, typer.Option("--filler", help="Text of the haystacks; default: synthetic")
]
Tokens = Annotated[
    int | None, typer.Option("--tokens", help="Tokens for perplexity; default: 16384")
]
Context = Annotated[
    int | None, typer.Option("--context", help="Tokens per window of perplexity; default: 2048")
]
Examples = Annotated[
    int | None, typer.Option("--examples", help="Examples per other task; default: 100")
]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        metavar="N,...",
        help="Haystack lengths; default: 512,1024,2048; of the suite long: 1024,2048",
    ),
]
Depths = Annotated[
    str | None,
    typer.Option("--depths", metavar="X,...", help="Needle depths; default: 0,.25,.5,.75,1"),
]


def evaluate(
    model: o.Model,
    kv: o.Caches = None,
    peer: Peers = None,
    suite: Suite = None,
    tasks: Tasks = None,
    text: Text = None,
    filler: Filler = None,
    tokens: Tokens = None,
    context: Context = None,
    examples: Examples = None,
    longbench: LongBench = None,
    lengths: Lengths = None,
    depths: Depths = None,
    results: o.ResultsFile = None,
    plot: o.Plot = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Run a dense cache first")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use few examples, as a smoke test")
    ] = False,
    speed: Annotated[
        bool, typer.Option("--speed", help="Add how fast each cache decodes against dense")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the examples")] = 0,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    calibration_text: o.CalibrationText = None,
    weights: o.Weights = "auto",
    as_markdown: o.Markdown = False,
) -> None:
    """Compare the quality of KV caches: perplexity, retrieval, long contexts, agreement."""
    from gossamer.evaluation.comparison import Comparison, compare, speeds_of
    from gossamer.evaluation.suite import Options, suite_tasks

    with o.one_line_errors():
        comparison = Comparison(
            model=model,
            caches=list(kv or []),
            peers=list(peer or []),
            tasks=suite_tasks(suite, tasks),
            options=Options(
                text=text,
                tokens=tokens,
                context=context,
                examples=examples,
                lengths=_numbers("lengths", lengths, int),
                depths=_numbers("depths", depths, float),
                filler=filler,
                longbench=longbench,
                seed=seed,
                quick=quick,
            ),
            engine=o.given(
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                kv_memory=kv_memory,
                calibration=calibration,
                calibration_text=calibration_text,
                weights=weights,
            ),
            baseline=baseline,
            results=results,
            plot=plot,
        )
        found = compare(comparison)
        times = speeds_of(comparison) if speed else None
        _report(found, times, plot, as_markdown=as_markdown)


def _numbers(
    name: str, text: str | None, kind: Callable[[str], Number]
) -> tuple[Number, ...] | None:
    """The numbers of `1,2,3`. Raises ValueError."""
    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--{name} is {text!r}; must be numbers, separated by commas") from None


def _report(
    results: "list[Result]",
    speeds: "dict[str, DecodeSpeed] | None",
    plot: Path | None,
    *,
    as_markdown: bool,
) -> None:
    """Print and draw. Exit code 1 when a task failed."""
    from gossamer.evaluation import plots
    from gossamer.evaluation.report import NOTE, markdown, rich_table

    if as_markdown:
        typer.echo(markdown(results, speeds=speeds))
    else:
        console = o.stdout_console()
        console.print(rich_table(results, speeds=speeds))
        console.print(NOTE, style="dim", highlight=False)
    if plot is not None:
        for file in plots.draw(results, plot):
            typer.echo(f"wrote {file}", err=True)
    failures = [result for result in results if result.entry.error]
    for failure in failures:
        typer.echo(f"error: {failure.task}, {failure.subject}: {failure.entry.error}", err=True)
    if failures:
        raise typer.Exit(1)

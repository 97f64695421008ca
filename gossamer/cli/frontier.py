"""`gossamer frontier`: which KV cache to use in a given memory."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli import options as o

BudgetOption = Annotated[
    str, typer.Option("--budget", metavar="25%|BYTES", help="of dense float16, or per token")
]
Length = Annotated[int, typer.Option("--length", help="of the sequences that the budget is for")]
Text = Annotated[
    Path | None, typer.Option("--text", help="text to choose on; in a checkout: WikiText-2's")
]
Tokens = Annotated[int, typer.Option("--tokens", help="of it that are measured")]
Context = Annotated[int, typer.Option("--context", help="of its windows")]
ResultsFile = Annotated[
    Path | None, typer.Option("--results", metavar="FILE", help="keep scores; go on from there")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FOLDER", help="draw the frontier")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE.json", help="for --kv of other commands"),
]
Minutes = Annotated[float | None, typer.Option("--minutes", help="start no new runs after them")]
Probes = Annotated[int, typer.Option("--probes", help="short runs for each of K and V")]
Pairs = Annotated[int, typer.Option("--pairs", help="caches to measure, beside variants")]


def frontier(
    model: o.Model,
    budget: BudgetOption,
    length: Length = 8192,
    text: Text = None,
    tokens: Tokens = 16_384,
    context: Context = 2_048,
    calibration: o.CalibrationFile = None,
    results: ResultsFile = None,
    plot: Plot = None,
    output: Output = None,
    minutes: Minutes = None,
    probes: Probes = 8,
    pairs: Pairs = 6,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="the table in Markdown")] = False,
) -> None:
    """Find the best KV cache for a budget: quality against bytes, measured by the engine."""
    # The engine takes seconds to import; `doctor` has no use for it.
    from gossamer.evaluation.frontier.command import SearchOptions, run  # noqa: PLC0415
    from gossamer.evaluation.frontier.measure import SearchError  # noqa: PLC0415
    from gossamer.evaluation.frontier.search import Effort  # noqa: PLC0415

    with o.one_line_errors():
        options = SearchOptions(
            model=model,
            budget=budget,
            length=length,
            text=text,
            tokens=tokens,
            context=context,
            engine=o.given(
                dtype=dtype, device=device, kv_memory=kv_memory, calibration=calibration
            ),
            effort=Effort(probes=probes, pairs=pairs, minutes=minutes),
            results=results,
            plot=plot,
            output=output,
        )
        try:
            run(options, as_markdown=as_markdown)
        except SearchError as error:
            o.failed(error)
            raise typer.Exit(1) from None

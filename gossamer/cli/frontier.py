"""`gossamer frontier`: which KV cache to use in a given memory."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli import options as o

BudgetOption = Annotated[
    str,
    typer.Option(
        "--budget", metavar="25%|BYTES", help="Share of a dense float16 cache, or bytes per token"
    ),
]
Length = Annotated[int, typer.Option("--length", help="Sequence length that the budget is for")]
Text = Annotated[
    Path | None,
    typer.Option("--text", help="Text to measure on; default in a checkout: WikiText-2"),
]
Tokens = Annotated[int, typer.Option("--tokens", help="Tokens of the text to measure on")]
Context = Annotated[int, typer.Option("--context", help="Tokens per window")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE.json",
        help="Write the best cache, for --kv of other commands",
    ),
]
Objective = Annotated[
    str, typer.Option("--objective", help="What is best: quality, speed or bytes")
]
MaxLoss = Annotated[
    float | None,
    typer.Option("--max-loss", metavar="NLL", help="Most that the best cache may add, e.g. 0.01"),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", help="Sequences of --length tokens to measure decode times for"),
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", help="Start no new runs after this time")
]
Probes = Annotated[int, typer.Option("--probes", help="Short runs for each of K and V")]
Pairs = Annotated[int, typer.Option("--pairs", help="Caches to measure, not counting variants")]


def frontier(
    model: o.Model,
    budget: BudgetOption,
    length: Length = 8192,
    objective: Objective = "quality",
    max_loss: MaxLoss = None,
    batch: Batch = None,
    text: Text = None,
    tokens: Tokens = 16_384,
    context: Context = 2_048,
    calibration: o.CalibrationFile = None,
    results: o.ResultsFile = None,
    plot: o.Plot = None,
    output: Output = None,
    minutes: Minutes = None,
    probes: Probes = 8,
    pairs: Pairs = 6,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    kv_memory: o.KVMemory = None,
    as_markdown: o.Markdown = False,
) -> None:
    """Find the best KV cache for a memory budget."""
    from gossamer.evaluation.frontier.command import SearchOptions, run
    from gossamer.evaluation.frontier.measure import SearchError
    from gossamer.evaluation.frontier.outcome import Aim
    from gossamer.evaluation.frontier.search import Effort

    with o.one_line_errors():
        if batch is not None:
            o.at_least("batch", batch, 1)
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
            aim=Aim(objective, max_loss),
            sequences=batch,
        )
        try:
            run(options, as_markdown=as_markdown)
        except SearchError as error:
            raise o.failed(error, code=1) from None

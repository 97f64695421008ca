"""`gossamer eval`: what KV caches cost in quality, measured with the engine."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli import options as o

DEFAULT_TASKS = "perplexity,lookup,needle,copying"

Tasks = Annotated[str, typer.Option("--tasks", metavar="NAME,...", help="which tasks")]
Peers = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="SPEC", help="another method: kivi:4, snapkv:0.25; repeatable"),
]
LongBench = Annotated[
    Path | None, typer.Option("--longbench", metavar="FOLDER", help="data of task longbench")
]
Text = Annotated[
    Path | None, typer.Option("--text", help="text of perplexity; in a checkout: WikiText-2's")
]
Filler = Annotated[
    Path | None, typer.Option("--filler", help="text of haystacks; default: made up")
]
Tokens = Annotated[int | None, typer.Option("--tokens", help="of perplexity; default 16384")]
Context = Annotated[int | None, typer.Option("--context", help="of its windows; default 2048")]
Examples = Annotated[int | None, typer.Option("--examples", help="of other tasks; default 100")]
Lengths = Annotated[
    str | None, typer.Option("--lengths", metavar="N,...", help="haystacks; default 512,1024,2048")
]
Depths = Annotated[
    str | None, typer.Option("--depths", metavar="X,...", help="needles; default 0,.25,.5,.75,1")
]
ResultsFile = Annotated[
    Path | None, typer.Option("--results", metavar="FILE", help="keep scores; go on from there")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FOLDER", help="draw figures")]
Seed = Annotated[int, typer.Option("--seed", help="of the examples")]


def evaluate(
    model: o.Model,
    kv: o.Caches = None,
    peer: Peers = None,
    tasks: Tasks = DEFAULT_TASKS,
    text: Text = None,
    filler: Filler = None,
    tokens: Tokens = None,
    context: Context = None,
    examples: Examples = None,
    longbench: LongBench = None,
    lengths: Lengths = None,
    depths: Depths = None,
    results: ResultsFile = None,
    plot: Plot = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="run a dense cache first")
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help="few examples, to see it work")] = False,
    seed: Seed = 0,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="the table in Markdown")] = False,
) -> None:
    """Compare KV caches: perplexity, lookup, needles and copying, with intervals."""
    # The engine takes seconds to import; `doctor` has no use for it.
    from gossamer.cli import evaluation  # noqa: PLC0415
    from gossamer.evaluation.suite import Options  # noqa: PLC0415

    with o.one_line_errors():
        job = evaluation.Job(
            model=model,
            caches=list(kv or []),
            peers=list(peer or []),
            tasks=[name.strip() for name in tasks.split(",") if name.strip()],
            options=Options(
                text=text,
                tokens=tokens,
                context=context,
                examples=examples,
                lengths=evaluation.numbers("lengths", lengths, int),
                depths=evaluation.numbers("depths", depths, float),
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
            ),
            baseline=baseline,
            results=results,
            plot=plot,
        )
        evaluation.run(job, as_markdown=as_markdown)

"""What `gossamer frontier` does, apart from its command line."""

from rich.console import Console

from gossamer.evaluation.frontier.choice import choice, write_choice
from gossamer.evaluation.frontier.job import Job, prepare
from gossamer.evaluation.frontier.outcome import Outcome
from gossamer.evaluation.frontier.plot import draw
from gossamer.evaluation.frontier.progress import Stages
from gossamer.evaluation.frontier.report import markdown, rich_table, verdict

LOG_WIDTH = 160  # a log has room for whole specs


def run(job: Job, *, as_markdown: bool) -> Outcome:
    """Search, print and write. Raises what `prepare` and `Search.run` raise."""
    with Stages(shown=True) as stages:
        search = prepare(job, stages)
        outcome = search.run()
        seconds = stages.seconds
    _print(outcome, as_markdown=as_markdown)
    notes = Console(stderr=True, soft_wrap=True, highlight=False)
    files = []
    if job.output is not None:
        write_choice(job.output, choice(outcome, search.measuring))
        files.append(job.output)
    if job.plot is not None:
        files += draw(outcome, job.plot)
    for file in files:
        notes.print(f"wrote {file}", markup=False)
    notes.print(f"{seconds / 60:.1f} minutes", markup=False)
    return outcome


def _print(outcome: Outcome, *, as_markdown: bool) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=LOG_WIDTH)
    if as_markdown:
        console.print(markdown(outcome), markup=False, highlight=False, soft_wrap=True)
        return
    console.print(rich_table(outcome))
    console.print(verdict(outcome), markup=False, highlight=False, soft_wrap=True)

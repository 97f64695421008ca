"""`gossamer ...`"""

from typing import Annotated

import typer

from gossamer._version import __version__
from gossamer.cli.batch import batch
from gossamer.cli.bench import bench
from gossamer.cli.calibrate import calibrate
from gossamer.cli.chat import chat
from gossamer.cli.check_op import check_op
from gossamer.cli.doctor import doctor
from gossamer.cli.eval import evaluate
from gossamer.cli.figures import figures
from gossamer.cli.frontier import frontier
from gossamer.cli.generate import generate
from gossamer.cli.masks import masks
from gossamer.cli.new_op import new_op
from gossamer.cli.plan import plan
from gossamer.cli.profile import profile
from gossamer.cli.quantize import quantize
from gossamer.cli.report import report
from gossamer.cli.serve import serve
from gossamer.cli.tune import tune

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(generate)
app.command()(chat)
app.command()(serve)
app.command()(batch)
app.add_typer(bench)
app.command("eval")(evaluate)
app.command()(frontier)
app.command()(calibrate)
app.command()(quantize)
app.command()(plan)
app.add_typer(masks)
app.add_typer(tune)
app.command()(new_op)
app.command()(check_op)
app.command()(figures)
app.command()(report)
# Options after the command are those of the command, also without --.
app.command(context_settings={"allow_interspersed_args": False})(profile)
app.command()(doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def gossamer(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Sparse LLM inference with PyTorch."""


if __name__ == "__main__":
    app()

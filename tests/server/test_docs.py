"""docs/server.md has every path, option, field and metric."""

from pathlib import Path

import typer

from gossamer.cli.main import app
from gossamer.server.schemas.chat import ChatBody
from gossamer.server.schemas.completions import CompletionBody
from gossamer.workloads.named import WORKLOADS
from tests.server.live import SPARSE, serving

TEXT = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def test_options():
    command = typer.main.get_command(app).commands["serve"]
    options = {name for option in command.params for name in option.opts if name[0] == "-"}
    assert {name for name in options - {"--help"} if f"`{name}`" not in TEXT} == set()


def test_options_of_the_load_test():
    command = typer.main.get_command(app).commands["bench"].commands["serve"]
    options = {name for option in command.params for name in option.opts if name[0] == "-"}
    assert {name for name in options - {"--help"} if f"`{name}" not in TEXT} == set()
    for name, mix in WORKLOADS.items():
        (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
        numbers = {mix.requests, *mix.inputs, *mix.outputs, mix.prefix}
        assert {n for n in numbers - {0} if f"{n:,}" not in row} == set()


def test_fields():
    fields = {*ChatBody.model_fields, *CompletionBody.model_fields}
    assert {name for name in fields if f"`{name}" not in TEXT} == set()


def test_paths_and_metrics(tiny):
    with serving(tiny, (SPARSE,)) as live:
        live.text()
        paths = live.get("/openapi.json").json()["paths"]
        lines = live.get("/metrics").text.splitlines()
    known = {path.split("{")[0].rstrip("/") for path in paths}
    assert {path for path in known if path not in TEXT and Path(path).name not in TEXT} == set()
    families = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    families = {name.removesuffix("_created") for name in families}
    assert {name for name in families if named(name) not in TEXT} == set()


def named(metric):
    return "`_waiting`" if metric == "gossamer_sequences_waiting" else metric

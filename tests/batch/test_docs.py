"""docs/batch.md has every option, its example is a request, and the paths of its map exist."""

import re
from pathlib import Path

import typer

from gossamer import batch
from gossamer.batch.request import Request, parse
from gossamer.cli.main import app

TEXT = (Path(__file__).parents[2] / "docs" / "batch.md").read_text()


def test_options():
    command = typer.main.get_command(app).commands["batch"]
    options = {name for option in command.params for name in option.opts if name[0] == "-"}
    assert {name for name in options - {"--help"} if f"`{name}`" not in TEXT} == set()


def test_the_example_is_a_request():
    (line,) = re.findall(r'^\{"custom_id".*$', TEXT, re.MULTILINE)
    custom_id, request = parse(line.encode())
    assert custom_id == "sky"
    assert isinstance(request, Request)


def test_the_map_names_every_file():
    files = {path.name for path in Path(batch.__file__).parent.glob("[a-z]*.py")}
    assert {name for name in files if f" {name} " not in TEXT} == set()

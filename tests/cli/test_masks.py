"""`gossamer masks`: list, and drawings in the terminal and in files."""

import sys

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app
from gossamer.masks.presets import PRESETS


def invoke(*arguments):
    return CliRunner().invoke(app, ["masks", *map(str, arguments)])


def test_list_has_every_name():
    output = invoke("list").output
    for name in PRESETS:
        assert f"\n{name} " in "\n" + output
    assert "--before 64 --after 0 --dilation 2" in output


def test_a_drawing_in_the_terminal():
    result = invoke("show", "causal", "--n", 8)
    assert result.exit_code == 0, result.output
    assert "density 56.25%; tiles of 64x64: 0 full, 1 partial, 0 empty" in result.output
    assert result.output.splitlines()[2:] == [
        "+--------+",
        "|█▒      |",
        "|███▒    |",
        "|█████▒  |",
        "|███████▒|",
        "+--------+",
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_every_mask_draws_itself(name):
    result = invoke("show", name, "--n", 200, "--tile", "32x32")
    assert result.exit_code == 0, result.output
    assert "tiles of 32x32" in result.output


def test_a_long_mask_is_drawn_by_tiles():
    result = invoke("show", "sliding", "--n", 10000, "--before", 1000)
    assert result.exit_code == 0, result.output
    assert "density 9.51%" in result.output
    assert len(result.output.splitlines()) == 36


def test_parameters_of_the_mask():
    result = invoke("show", "longformer", "--window=2", "--tokens", "0-2,7,90-91", "--n", 100)
    assert "tokens=(range(0, 3), range(7, 8), range(90, 92))" in result.output
    assert "Causal(offset=-3)" in invoke("show", "causal", "--offset", -3).output


@pytest.mark.parametrize("n", [300, 3000])
def test_a_figure(tmp_path, n):
    pytest.importorskip("matplotlib")
    path = tmp_path / "mask.png"
    result = invoke("show", "stof-bigbird", "--n", n, "-o", path)
    assert result.exit_code == 0, result.output
    assert f"wrote {path}" in result.output.replace("\n", "")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("causal", "--n", 0), "n is 0; must be 1 to"),
        (("cause",), "mask is 'cause'; must be one of full, causal"),
        (("causal", "--before", 3), "mask causal has no parameter 'before'; it has: offset"),
        (("sliding", "--before"), "--before is ''; must be an integer"),
        (("sliding", "--before", "1-2-3"), "--before is '1-2-3'; must be an integer"),
        (("sliding", "7"), "'7' is neither an option nor its value"),
        (("causal", "--tile", "64"), "--tile is '64'; must be two numbers"),
        (("causal", "--tile", "64x63"), "tile_k is 63; must be one of 32, 64, 128"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    result = invoke("show", *arguments)
    assert result.exit_code == 2
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert message in line


def test_a_picture_of_no_known_kind(tmp_path):
    pytest.importorskip("matplotlib")
    result = invoke("show", "causal", "-o", tmp_path / "mask.docx")
    assert result.exit_code == 2
    assert "error: Format 'docx' is not supported" in result.stderr


def test_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("show", "causal", "-o", tmp_path / "mask.png")
    assert result.exit_code == 2
    assert "figures need matplotlib: pip install 'gossamer[plots]'" in result.stderr

"""`gossamer tune attention`: on a tiny grid."""

import pytest
import torch
from typer.testing import CliRunner

from gossamer.attention import tuning
from gossamer.attention.coefficient_files import coefficients_of, read, user_file
from gossamer.attention.tuning import Point, grid
from gossamer.cli.main import app

CPU = torch.device("cpu")


def invoke(*arguments):
    return CliRunner().invoke(app, ["tune", "attention", *map(str, arguments)])


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    points = [
        Point(mask, 1, 2, n, 64) for mask in ("causal", "sliding") for n in (33, 64, 100, 130)
    ]
    monkeypatch.setattr(tuning, "grid", lambda device, quick: points[:6] if quick else points)
    coefficients_of.cache_clear()
    yield
    coefficients_of.cache_clear()


def test_the_cache_is_where_the_selector_looks():
    result = invoke("--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "left out of the fit: regret at 8 points: median" in result.output
    assert user_file(CPU).is_file()
    assert coefficients_of(CPU).known
    groups = read(user_file(CPU)).model.groups
    assert "cpu 64x64 d64" in groups
    assert result.output.count(" us of ") == 8


def test_another_file(tmp_path):
    path = tmp_path / "mine.json"
    result = invoke("--device", "cpu", "--quick", "-o", path)
    assert result.exit_code == 0, result.output
    assert read(path).model.places == torch.get_num_threads()
    assert not user_file(CPU).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "tpu"), "--device is 'tpu'; must be cpu, cuda"),
        (("--device", "meta"), "--device is 'meta'; must be cpu, cuda"),
        (("--device", "cpu", "--dtype", "int8"), "--dtype is 'int8'; must be float16"),
        (("--device", "cpu", "--points", 0), "--points is 0; must be at least 1"),
        (("--device", "cpu", "--points", 1), "1 points are too few to fit anything"),
        (("--device", "cpu", "-o", "/"), "/: is a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    result = invoke(*arguments)
    assert result.exit_code == 2
    (line,) = [x for x in result.stderr.splitlines() if x.startswith("error: ")]
    assert message in line


def test_the_grid():
    for device in (CPU, torch.device("cuda")):
        points = grid(device)
        assert len(points) == len(set(points))
        quick = grid(device, quick=True)
        assert quick == points[: len(quick)]
        assert {p.mask for p in quick} == set(tuning.MASKS)

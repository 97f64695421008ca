"""Files of coefficients: written at once, found again, refused when damaged."""

import json

import pytest
import torch

from gossamer import masked_attention
from gossamer import masks as m
from gossamer.attention import coefficient_files as files
from gossamer.attention.coefficient_files import Coefficients, coefficients_of, read, write
from gossamer.attention.cost import Model
from tests.attention.oracle import inputs

CPU = torch.device("cpu")
GROUPS = {
    "cpu 64x64 d64": tuple(float(x) for x in range(14)),
    "rows cpu d64": (0.5, 1.0, 2.0, 3.25),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    coefficients_of.cache_clear()
    yield tmp_path / "cache"
    coefficients_of.cache_clear()


def test_round_trip(tmp_path):
    path = tmp_path / "deep" / "file.json"
    written = Coefficients(Model(7, GROUPS), "a device", True, {"torch": "2"})
    write(written, path)
    assert read(path) == written
    assert [p.name for p in path.parent.iterdir()] == ["file.json"]


def test_the_users_own_come_first(cache):
    shipped = coefficients_of(CPU)
    assert shipped.model.groups
    write(Coefficients(Model(99, GROUPS), "mine"), files.user_file(CPU))
    found = coefficients_of(CPU)  # writing forgets what was known
    assert found.device == "mine"
    assert found.known
    assert found.model.places == torch.get_num_threads()
    assert files.user_file(CPU).is_relative_to(cache)


def test_a_device_that_nobody_measured(monkeypatch):
    monkeypatch.setattr(files, "device_folder", lambda device: "unheard-of")
    assert not coefficients_of(CPU).known


def test_names_of_files(monkeypatch, tmp_path):
    assert "torch-" in files.user_file(CPU).name
    monkeypatch.delenv("GOSSAMER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert files.cache_folder() == tmp_path / "gossamer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert files.cache_folder() == tmp_path / "home" / ".cache" / "gossamer"


def good():
    names = ("launch", "bytes", "queries", "pairs")
    group = {"rows cpu d64": dict.fromkeys(names, 1.0)}
    return {"format": 1, "device": "d", "places": 2, "versions": {}, "groups": group}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "null",
        json.dumps(good() | {"format": 2}),
        json.dumps(good() | {"places": 0}),
        json.dumps(good() | {"groups": {}}),
        json.dumps(good() | {"groups": []}),
        json.dumps(good() | {"groups": {"rows cpu": {}}}),
        json.dumps(good() | {"groups": {"cuda d64": {}}}),
        json.dumps(good() | {"groups": {"rows cpu d64": {"launch": 1}}}),
        json.dumps({"format": 1}),
        json.dumps(good()).replace("1.0", "-1.0"),
        json.dumps(good()).replace("1.0", "NaN"),
        json.dumps(good()).replace("1.0", '"x"'),
        "\udcff",
    ],
)
def test_damaged_files(cache, content):
    path = files.user_file(CPU)
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match="gossamer tune attention") as error:
        coefficients_of(CPU)
    assert str(path) in str(error.value)
    with pytest.raises(ValueError, match="damaged"):
        masked_attention(*inputs(1, 1, 1, 6, 6, 64), m.Sliding(1, 1))


def test_good_is_good(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(good()))
    assert read(tmp_path / "x.json").model.places == 2


def test_shipped_files():
    for path in files.SHIPPED.glob("*.json"):
        assert read(path).model.groups
    assert all((files.SHIPPED / name).is_file() for name in files.DEFAULTS.values())

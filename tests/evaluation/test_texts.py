"""Texts come from files and from data sets, and say what is wrong with them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.texts import is_there, read_text


@pytest.fixture
def asked(monkeypatch):
    """A package `datasets` with one data set, and what it was asked for."""
    calls = []

    def load_dataset(name, config, split):
        calls.append((name, config, split))
        if name == "no/where":
            raise ConnectionError("no\nroute")
        return [] if split == "empty" else [{"text": "a b"}, {"text": "c", "title": 5}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_files(tmp_path):
    path = tmp_path / "a.txt"
    assert not is_there(path)
    path.write_text("wörds", encoding="utf-8")
    assert is_there(path)
    assert read_text(path) == ("wörds", "a.txt")
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"a\.txt: not UTF-8"):
        read_text(path)


def test_data_sets(asked):
    source = Path("hf:me/words,config=raw")
    assert is_there(source)
    assert read_text(source) == ("a b\n\nc", "hf:me/words,config=raw")
    assert Perplexity.of_file(Path("hf:me/words,split=train")).settings["text"].startswith("hf:me")
    assert asked == [("me/words", "raw", "test"), ("me/words", None, "train")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:", "names no data set"),
        ("hf:me/words,raw", "'raw' is not key=value"),
        ("hf:me/words,colour=red", "key of .* is 'colour'; must be one of config, split, field"),
        ("hf:me/words,field=title", "row 1 has no text 'title'; it has text"),
        ("hf:me/words,split=empty", "has no rows; name another split"),
        ("hf:no/where", r"no/where cannot be loaded by datasets \(ConnectionError: no route\)"),
    ],
)
def test_bad_data_sets(asked, source, message):
    with pytest.raises(ValueError, match=message):
        read_text(Path(source))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"datasets is needed.*gossamer\[eval\], or name a text"):
        read_text(Path("hf:me/words"))

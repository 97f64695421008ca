"""Files of LongBench, whole and broken, and the package datasets."""

import json
import sys
import types

import pytest

from gossamer.evaluation.longbench import LongBench
from gossamer.evaluation.longbench.data import read_task
from tests.evaluation.longbench import row, write


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": []}, "answers is empty; must have at least one text"),
        ({"answers": "Rome"}, "answers is 'Rome'; must be a list of texts"),
        ({"answers": [1]}, "answers is [1]; must be a list of texts"),
        ({"context": None}, "context is NoneType; must be text"),
        ({"length": "long"}, "length is 'long'; must be an integer"),
        ({"dataset": "qasper"}, "dataset is 'qasper'; must be 'trec'"),
        ({"all_classes": None}, "all_classes is empty; must have at least one text"),
        ({"_id": "id-0"}, "_id 'id-0' is there twice; must be there once"),
    ],
)
def test_bad_rows(change, message, tmp_path):
    write(tmp_path, "trec", [row("trec", 0), row("trec", 1, **change)])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        read_task("trec", tmp_path)
    assert str(caught.value) == f"{tmp_path / 'trec.jsonl'}: example 2: {message}"


def test_bad_files(tmp_path):
    path = tmp_path / "trec.jsonl"
    with pytest.raises(FileNotFoundError, match=r"there is no such file; it is part of LongBench"):
        read_task("trec", tmp_path)
    half = {key: value for key, value in row("trec").items() if key not in ("input", "answers")}
    cases = [
        ("", f"{path}: has no examples; download it again"),
        ("\n\n", f"{path}: has no examples; download it again"),
        ("{", f"{path}:1: not a line of JSON: "),
        (json.dumps(row("trec")) + "\n[1", f"{path}:2: not a line of JSON: "),
        ("[]", f"{path}: example 1: is list; must be an object with input, context, "),
        (json.dumps(half), f"{path}: example 1: has no input, answers; must have input, context, "),
    ]
    for text, message in cases:
        path.write_text(text)
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            read_task("trec", tmp_path)
        assert str(caught.value).startswith(message)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_task("trec", tmp_path)


def test_letters_that_other_readers_take_for_line_ends(tmp_path):
    text = "one\u2028two\x85three"
    lines = json.dumps(row("qasper", context=text), ensure_ascii=False) + "\r\n"
    (tmp_path / "qasper.jsonl").write_text(lines, encoding="utf-8", newline="")
    assert read_task("qasper", tmp_path)[0].context == text


def test_the_package_datasets(monkeypatch):
    asked = []

    def load_dataset(name, task, split):
        asked.append((name, task, split))
        if task == "lcc":
            raise RuntimeError("scripts are\nnot supported")
        return [row(task)]

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert LongBench("qasper", 4096).rows[0].id == "id-0"
    assert asked == [("THUDM/LongBench", "qasper", "test")]
    message = r"RuntimeError: scripts are not supported\); unpack LongBench's data.zip"
    with pytest.raises(ValueError, match=message):
        read_task("lcc", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"datasets is needed here .* or unpack LongBench"):
        read_task("qasper", None)

"""LongBench's examples: from a folder of its .jsonl files, or by the package `datasets`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.evaluation.texts import load_dataset

DATASET = "THUDM/LongBench"
INSTEAD = "unpack LongBench's data.zip and name its folder"
FIELDS = ("input", "context", "answers", "length", "dataset", "language", "all_classes", "_id")


@dataclass(frozen=True)
class Row:
    """One example. length: words of the context. classes: those of trec; none elsewhere."""

    id: str
    input: str
    context: str
    answers: tuple[str, ...]
    length: int
    classes: tuple[str, ...]


def read_task(task: str, folder: Path | None) -> list[Row]:
    """The rows of a task: `<folder>/<task>.jsonl`, or without a folder by `datasets`.

    Raises FileNotFoundError, ImportError, or ValueError that names the line and the field.
    """
    if folder is None:
        return _rows(task, f"{DATASET} {task}", load_dataset(DATASET, task, "test", INSTEAD))
    path = folder / f"{task}.jsonl"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: there is no such file; it is part of LongBench's data.zip, or name no folder "
            "to load the task by the package datasets"
        )
    return _rows(task, str(path), _lines(path))


def _lines(path: Path) -> Iterable[Any]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: not a line of JSON: {error}") from None


def _rows(task: str, source: str, lines: Iterable[Any]) -> list[Row]:
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = _row(task, line)
            if row.id in rows:
                raise ValueError(f"_id {row.id!r} is there twice; must be there once")
        except ValueError as error:
            raise ValueError(f"{source}: example {number}: {error}") from None
        rows[row.id] = row
    if not rows:
        raise ValueError(f"{source}: has no examples; download it again")
    return list(rows.values())


def _row(task: str, line: Any) -> Row:
    if not isinstance(line, dict):
        raise ValueError(f"is {type(line).__name__}; must be an object with {', '.join(FIELDS)}")
    if missing := [name for name in FIELDS if name not in line]:
        raise ValueError(f"has no {', '.join(missing)}; must have {', '.join(FIELDS)}")
    for name in ("input", "context", "_id", "dataset"):
        if not isinstance(line[name], str):
            raise ValueError(f"{name} is {type(line[name]).__name__}; must be text")
    # LongBench-E names its tasks so; its rows have the same form.
    if line["dataset"] not in (task, f"{task}_e"):
        raise ValueError(f"dataset is {line['dataset']!r}; must be {task!r}")
    if type(line["length"]) is not int:
        raise ValueError(f"length is {line['length']!r}; must be an integer")
    return Row(
        id=line["_id"],
        input=line["input"],
        context=line["context"],
        answers=_texts("answers", line["answers"], needed=True),
        length=line["length"],
        classes=_texts("all_classes", line["all_classes"] or [], needed=task == "trec"),
    )


def _texts(name: str, value: Any, *, needed: bool) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
        raise ValueError(f"{name} is {value!r}; must be a list of texts")
    if needed and not value:
        raise ValueError(f"{name} is empty; must have at least one text")
    return tuple(value)

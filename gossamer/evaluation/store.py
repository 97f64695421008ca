"""A results file: one JSON line for each point, appended as soon as it is known.

A line is whole in itself: what was asked of what, with which settings and versions. Kinds of lines
by `status`: "ok" (the score of one example), "finished" (a task ran to its end), "failed" (it did
not, and `error` says why). Half a line at the end, of a run that was cut short, is dropped.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gossamer.evaluation.tasks import Score

STATUSES = ("ok", "finished", "failed")
WHERE = ("device", "versions", "revision")
LINE_START = b'{"key": "'


@dataclass(frozen=True)
class Point:
    """What a score belongs to; equal for runs that can be continued.

    setup: what else results depend on, such as the dtype. Versions and revision are not part of it.
    """

    task: str
    kind: str
    settings: dict[str, Any]
    model: str
    subject: str
    seed: int
    setup: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for equal points, in every run. TypeError for settings that JSON cannot hold."""
        text = json.dumps(asdict(self), sort_keys=True, default=_path)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Entry:
    """What a file has of one point, in the order in which it came.

    where: the device, versions and revision of its latest line.
    """

    scores: dict[str, Score] = field(default_factory=dict)
    bytes_per_token: float = 0.0
    share: float = 0.0
    seconds: float = 0.0
    finished: bool = False
    error: str | None = None
    where: dict[str, Any] = field(default_factory=dict)


class Store:
    """The lines of a file; adds to them. path None: nothing is kept after the run.

    Raises ValueError, with file and line, for a file that holds something else.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._entries: dict[str, Entry] = {}
        if path is not None and path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            for number, line in enumerate(content[:whole].splitlines(), start=1):
                self._take(_parsed(path, number, line))
            if whole < len(content):
                _drop_half_a_line(path, content[whole:], whole)

    def entry(self, point: Point) -> Entry:
        """What is known of a point; empty for a new one."""
        return self._entries.get(point.key, Entry())

    def add_score(self, point: Point, score: Score, **facts: Any) -> None:
        self._append(point, "ok", {**asdict(score), **facts})

    def add_end(self, point: Point, *, error: str | None = None, **facts: Any) -> None:
        """The task is finished, or has failed with this error; a later run tries it again."""
        end: dict[str, Any] = {} if error is None else {"error": error}
        self._append(point, "finished" if error is None else "failed", {**end, **facts})

    def _append(self, point: Point, status: str, facts: dict[str, Any]) -> None:
        line = {"key": point.key, "status": status, **asdict(point), **facts}
        text = json.dumps(line, default=str)
        self._take(json.loads(text))
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _take(self, line: dict[str, Any]) -> None:
        entry = self._entries.setdefault(line["key"], Entry())
        entry.bytes_per_token = line.get("bytes_per_token", entry.bytes_per_token)
        entry.share = line.get("share", entry.share)
        entry.where = {name: line[name] for name in WHERE if name in line}
        if line["status"] == "ok":
            entry.scores[line["example"]] = Score(
                line["example"], line["value"], line["weight"], line["meta"]
            )
            return
        entry.finished = line["status"] == "finished"
        entry.error = line.get("error")
        entry.seconds += line.get("seconds", 0.0)


def _path(value: Any) -> str:
    """What else settings may hold; the repr of other objects would change with every run."""
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a setting is {value!r}; must be text, a number, a list or a dict of them")


def _drop_half_a_line(path: Path, half: bytes, whole: int) -> None:
    """What a run that was cut short left. Raises ValueError if something else wrote it."""
    if half[: len(LINE_START)] != LINE_START[: len(half)]:
        raise ValueError(f"{path}: ends in what is no line of a results file; name another file")
    with path.open("r+b") as file:
        file.truncate(whole)


def _parsed(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:  # also what is not UTF-8
        line = None
    needed = {"key", "status"}
    if isinstance(line, dict) and line.get("status") == "ok":
        needed |= {"example", "value", "weight", "meta"}
    if not isinstance(line, dict) or not needed <= set(line) or line["status"] not in STATUSES:
        raise ValueError(
            f"{path}:{number} is not a line of a results file of `gossamer eval`; name another file"
        )
    return line

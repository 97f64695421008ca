"""Tuned plans on disk: one SQLite file in the cache folder that coefficients lie in, too."""

import json
import logging
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.attention.coefficient_files import cache_folder
from gossamer.fusion.capture import Captured
from gossamer.fusion.plan import Plan
from gossamer.fusion.signature import (
    digest_of,
    graph_signature,
    machine,
    mask_signature,
    shapes_of,
)

log = logging.getLogger("gossamer.fusion")

FORMAT = 1
WAIT_SECONDS = 10.0  # for another process that writes
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)  # what reading an entry may raise
_TABLE = """create table if not exists plans (
    key text primary key, format integer, subject text, machine text, shapes text, plan text,
    made real)"""


@dataclass(frozen=True)
class Subject:
    """What a plan is for: a graph of these shapes and dtypes, a mask, and who compiles the rest.

    shapes: for readers. machine: device and versions.
    """

    graph: str
    mask: str
    rest: str
    shapes: str
    machine: dict[str, str]

    @classmethod
    def of(cls, captured: Captured, mask: Any, rest: str) -> "Subject":
        module = captured.module
        where = machine(captured.device)
        return cls(graph_signature(module), mask_signature(mask), rest, shapes_of(module), where)

    @property
    def name(self) -> str:
        """The same on another device and in other versions."""
        return digest_of([self.graph, self.mask, self.rest])

    @property
    def key(self) -> str:
        return digest_of([self.name, self.machine])


@dataclass(frozen=True)
class Entry:
    """A line of the cache, for `gossamer tune list`."""

    shapes: str
    machine: dict[str, str]
    plan: Plan
    facts: dict[str, Any]
    made: float


class PlanCache:
    """Plans by subject. Whatever is wrong with the file or an entry is a warning, and no plan."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_folder() / "plans.sqlite"

    def get(self, subject: Subject) -> Plan | None:
        """The plan that was tuned for this subject here."""
        rows = self._rows("select format, plan from plans where key = ?", subject.key)
        for version, text in rows:
            try:
                return _parsed(version, text)[0]
            except _DAMAGED as error:
                log.warning("%s: an entry is damaged and ignored: %s", self.path, error)
        if not rows:
            self._explain_stale(subject)
        return None

    def put(self, subject: Subject, plan: Plan, facts: dict[str, Any]) -> bool:
        """Whether it is kept; if not, a warning said why."""
        content = {
            "operators": plan.operators,
            "plan": plan.key,
            "kernels": {str(i): kernel for i, kernel in plan.kernels.items()},
            "measured": {str(i): us for i, us in plan.measured.items()},
            "facts": facts,
        }
        row = (subject.key, FORMAT, subject.name, json.dumps(subject.machine), subject.shapes)
        values = (*row, json.dumps(content), time.time())
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._insert(values)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_NOTADB:
                    raise
                self._move_aside()
                self._insert(values)
        except (sqlite3.Error, OSError) as error:
            log.warning("%s cannot be written: %s; the plan is not kept", self.path, error)
            return False
        return True

    def entries(self) -> list[Entry]:
        """All of them that are in order, oldest first."""
        query = "select format, plan, shapes, machine, made from plans order by made"
        found = []
        for version, text, shapes, where, made in self._rows(query):
            try:
                plan, facts = _parsed(version, text)
                found.append(Entry(shapes, json.loads(where), plan, facts, made))
            except _DAMAGED:
                log.warning("%s: an entry is damaged and ignored", self.path)
        return found

    def _rows(self, query: str, *values: str) -> list[Any]:
        """None where there is no file, and with a warning where it cannot be read."""
        if not self.path.exists():
            return []
        try:
            with closing(self._connected()) as connection:
                return connection.execute(query, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            log.warning("%s cannot be read: %s; tuned plans are not used", self.path, error)
            return []

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=WAIT_SECONDS)

    def _explain_stale(self, subject: Subject) -> None:
        query = "select machine from plans where subject = ? order by made desc limit 1"
        for (text,) in self._rows(query, subject.name):
            log.warning(
                "a tuned plan is not used, as it was measured with %s; run `gossamer tune model`",
                ", ".join(f"{k} {v}" for k, v in json.loads(text).items()),
            )

    def _insert(self, values: tuple[Any, ...]) -> None:
        with closing(self._connected()) as connection, connection:
            connection.execute(_TABLE)
            connection.execute("insert or replace into plans values (?,?,?,?,?,?,?)", values)

    def _move_aside(self) -> None:
        """What is no database would keep every plan from being written.

        SQLite says what is none. Opening and closing the file to look would drop the locks that
        other threads of this process hold on it (https://www.sqlite.org/howtocorrupt.html, 2.2).
        """
        aside = self.path.with_suffix(".damaged")
        self.path.replace(aside)
        log.warning("%s was no database; it is %s now", self.path, aside)


def _parsed(version: int, text: str) -> tuple[Plan, dict[str, Any]]:
    """Plan and facts of an entry. Raises ValueError, KeyError, TypeError or AttributeError."""
    if version != FORMAT:
        raise ValueError(f"format is {version}; must be {FORMAT}")
    content = json.loads(text)
    plan = Plan.decode(content["plan"], content["operators"])
    kernels = {int(i): str(kernel) for i, kernel in content["kernels"].items()}
    measured = {int(i): float(us) for i, us in content["measured"].items()}
    return Plan(plan.operators, plan.cuts, kernels, measured), dict(content["facts"])

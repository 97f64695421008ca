"""The output of a batch job: a line for each line of the input, in the order they are finished.

The file is all that a job leaves: ids of results say which job and which line they belong to, so
a job goes on from whatever is there, even from a file that was cut at any byte.
"""

import fcntl
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from gossamer.batch.job import DIGITS, Job
from gossamer.server.errors import APIError

OK = 200
ID = re.compile(rf"batch_req_([0-9a-f]{{{DIGITS}}})_([0-9a-f]{{{DIGITS}}})_([0-9]+)")
START = b'{"id":"'  # of every line


@dataclass(frozen=True)
class Result:
    """Of the line `number`: what the server answered, or why it was not asked."""

    number: int
    custom_id: str | None
    status: int | None = None
    request_id: str | None = None
    body: Any = None
    error: APIError | None = None

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def engine_failed(self) -> bool:
        """The request is not to blame, or need not be."""
        return self.status is not None and self.status >= 500

    def line(self, job: Job) -> str:
        """As OpenAI writes it."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": self.body}
        content = {
            "id": f"{job.prefix}{self.number}",
            "custom_id": self.custom_id,
            "response": response if self.error is None else None,
            "error": None if self.error is None else self._error(self.error),
        }
        return json.dumps(content, separators=(",", ":"))

    def _error(self, error: APIError) -> dict[str, Any]:
        found = error.body()["error"]
        return {**{name: found[name] for name in ("code", "message", "param")}, "line": self.number}


class Results:
    """Opens the output file for one job, and cuts off half a line that a killed one left.

    done: by line number, 1 where there is a result. Raises OSError for a file that cannot be
    written, and ValueError for one that holds anything but results of this job.
    """

    def __init__(self, path: Path, job: Job, last: int) -> None:
        self.path, self.job = path, job
        self.done = bytearray(last + 1)
        self.count, self.answered = 0, 0
        self._file = _opened(path)
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            self._file.close()

    def add(self, number: int, line: str, *, ok: bool) -> bool:
        """Whether it is new: who computes lines elsewhere may send some of them again."""
        if self.done[number]:
            return False
        self._file.write(line.encode() + b"\n")
        self._count(number, ok=ok)
        return True

    def sync(self) -> None:
        """What was added is on the disk from here on."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def _count(self, number: int, *, ok: bool) -> None:
        self.done[number] = 1
        self.count += 1
        self.answered += ok

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for place, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                self._cut(line, whole)
                break
            whole += len(line)
            self._take(place, line)

    def _take(self, place: int, text: bytes) -> None:
        """A line of an earlier run."""
        try:
            line = json.loads(text)
            id, response = line["id"], line["response"]
            ok = response is not None and response["status_code"] == OK
            match = ID.fullmatch(id)
        except (ValueError, TypeError, KeyError):  # ValueError: also what is not UTF-8
            match = None
        if match is None:
            raise ValueError(
                f"{self.path}:{place} is not a result of `gossamer batch`; name another output file"
            )
        input_, setup, number = match[1], match[2], int(match[3])
        if input_ != self.job.input[:DIGITS]:
            raise ValueError(f"{self.path} has results of another input; name another output file")
        if setup != self.job.setup[:DIGITS]:
            raise ValueError(
                f"{self.path} has results of another model, cache, dtype, context or calibration; "
                "go on with those, or name another output file"
            )
        if number >= len(self.done) or self.done[number]:
            raise ValueError(
                f"{self.path}:{place} is one result too many of line {number}; remove it"
            )
        self._count(number, ok=ok)

    def _cut(self, half: bytes, whole: int) -> None:
        """Raises ValueError if something else wrote it."""
        start = START + self.job.prefix.encode()
        if half[: len(start)] != start[: len(half)]:
            raise ValueError(
                f"{self.path} ends in what is no result of this job; name another output file"
            )
        self._file.truncate(whole)


def _opened(path: Path) -> BinaryIO:
    """For one process at a time."""
    file = path.open("a+b")
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no regular file; name another output file")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(f"{path} is being written by another process") from None
    except BaseException:
        file.close()
        raise
    return file

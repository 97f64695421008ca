"""The input of a batch job: what must be known of all its lines, then the lines one by one.

Lines are never all in memory; each takes some tens of bytes during the survey, and 2 afterwards.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gossamer.batch.request import custom_id_of

CHUNK = 8 << 20  # bytes


@dataclass(frozen=True)
class Line:
    """number: from 1, blank lines counted. content: None where it is longer than the limit.

    repeats: an earlier line has its custom_id.
    """

    number: int
    content: bytes | None
    repeats: bool = False


@dataclass(frozen=True)
class Chunk:
    """Lines from number `begin` to before `end`, in a file at `offset`."""

    offset: int
    begin: int
    end: int

    def read(self, path: Path, limit: int) -> Iterator[tuple[int, bytes | None]]:
        """(number, content) of those that are not blank; see Line."""
        with path.open("rb") as file:
            file.seek(self.offset)
            contents = (content for content, _ in _contents(file, limit))
            # The range comes first: zip would take a line more from the file.
            for number, content in zip(range(self.begin, self.end), contents, strict=False):
                if not _blank(content):
                    yield number, content


@dataclass(frozen=True, eq=False)
class Survey:
    """limit: bytes of a line. count: of lines that are not blank. repeats: by number, see Line."""

    path: Path
    limit: int
    digest: str
    count: int
    repeats: bytearray
    chunks: tuple[Chunk, ...]

    def lines(self, done: Sequence[int]) -> Iterator[Line]:
        """As they are read; without those whose number is done."""
        for chunk in self.chunks:
            for number, content in chunk.read(self.path, self.limit):
                if not done[number]:
                    yield Line(number, content, bool(self.repeats[number]))


def survey(path: Path, limit: int) -> Survey:
    """Raises OSError."""
    ids, owners = bytearray(), array("Q")
    count, number, offset = 0, 0, 0
    starts = [(0, 1)]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        for number, (content, size) in enumerate(_contents(file, limit), start=1):
            if offset - starts[-1][0] >= CHUNK:
                starts.append((offset, number))
            offset += size
            count += not _blank(content)
            custom_id = None if content is None else custom_id_of(content)
            if custom_id is not None:
                ids += hashlib.blake2b(
                    custom_id.encode("utf-8", "surrogatepass"), digest_size=16
                ).digest()
                owners.append(number)
    repeats = bytearray(number + 1)
    for index in _repeated(ids):
        repeats[owners[index]] = 1
    ends = [*starts, (offset, number + 1)]
    chunks = tuple(Chunk(at, begin, end) for (at, begin), (_, end) in pairwise(ends))
    return Survey(path, limit, digest, count, repeats, chunks)


def _contents(file: BinaryIO, limit: int) -> Iterator[tuple[bytes | None, int]]:
    """(content, bytes) of each line; None for the content of one that is longer than the limit."""
    while content := file.readline(limit):
        size, part = len(content), content
        while not part.endswith(b"\n") and (part := file.readline(limit)):
            size += len(part)
        yield (content if size == len(content) else None), size


def _blank(content: bytes | None) -> bool:
    return content is not None and not content.strip()


def _repeated(ids: bytearray) -> list[int]:
    """Which of these digests of 16 bytes are there before."""
    each = np.frombuffer(ids, dtype="S16")
    found = np.ones(len(each), dtype=bool)
    found[np.unique(each, return_index=True)[1]] = False
    return [int(index) for index in found.nonzero()[0]]

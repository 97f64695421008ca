"""Pages of K and V outside of engines, found by name: what engines hand to each other.

A name stands for all that a page depends on (tokens, model, cache), so a page never changes: it
does not matter who puts it first, and one that is lost costs a computation, never an answer.
"""

import logging
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from filelock import FileLock
from torch import Tensor

log = logging.getLogger("gossamer.kv")
MAGIC = b"gossKV01"
HEADER = struct.Struct("<8sIQ")  # MAGIC, CRC-32 of name and content, bytes of content
LOCK_SECONDS = 10  # that another process, if it was stopped, can make this one wait
SLACK = 16  # files are counted anew after 1/16 of the limit has been written


@runtime_checkable
class PageStore(Protocol):
    """Shared by engines, also of other processes; each calls it in background threads.

    Names are relative paths: a space, a slash, a page. Pages are uint8 [bytes] on the CPU.
    """

    def open_space(self, space: str, about: str) -> list[str]:
        """Make room for pages of a space; if it is a new one, what the others are about."""
        ...

    def touch(self, names: Iterable[str]) -> set[str]:
        """Those of these pages that are there. They count as used now, the first most recently."""
        ...

    def get(self, name: str, page: Tensor) -> bool:
        """Fill `page`; False unless the page is there, whole and of this size."""
        ...

    def put(self, name: str, page: Tensor) -> None:
        """Publish a page, whole or not at all. OSError where it cannot be kept."""
        ...


class PageFolder:
    """A PageStore of files, in shared memory or on a disk; `limit` bytes at most, of all spaces.

    A file appears under its name when it is complete. When the folder is full, the pages that were
    not used for longest are deleted; every process does so by its own limit. Raises ValueError for
    what cannot be such a folder.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder, self.limit = Path(folder).absolute(), limit
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # prompts can be read in it
            self._lock = FileLock(self.folder / ".lock", timeout=LOCK_SECONDS)
            with self._lock:
                pass
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(f"{folder} cannot be a folder of pages: {reason}") from None

    def open_space(self, space: str, about: str) -> list[str]:
        label = self.folder / space / "about.txt"
        if label.exists():
            return []
        label.parent.mkdir(mode=0o700, exist_ok=True)
        label.write_text(about + "\n", encoding="utf-8")
        others = sorted(self.folder.glob("*/about.txt"))
        return [path.read_text(encoding="utf-8").strip() for path in others if path != label]

    def touch(self, names: Iterable[str]) -> set[str]:
        now, found = time.time_ns(), set()
        for age, name in enumerate(names):
            try:  # names come by the thousand: no Path, no context
                os.utime(self._path(name), ns=(now - age, now - age))
            except OSError:
                continue
            found.add(name)
        return found

    def get(self, name: str, page: Tensor) -> bool:
        path, content = Path(self._path(name)), page.numpy().data
        try:
            # Not by mmap: a process that reads a map of a file that was cut short is killed.
            with path.open("rb") as file:
                header, count = file.read(HEADER.size), file.readinto(content)
                longer = file.read(1)
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error.strerror or error)
            return False
        if header != _header(name, content) or count != len(content) or longer:
            log.warning("%s is damaged and is deleted", path)
            path.unlink(missing_ok=True)
            return False
        return True

    def put(self, name: str, page: Tensor) -> None:
        path, content = Path(self._path(name)), page.numpy().data
        size = HEADER.size + len(content)
        if size > self.limit:
            return
        self._make_room(size)
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(_header(name, content))
                file.write(content)
            now = time.time_ns()  # the file system's own clock has steps of milliseconds
            os.utime(temporary, ns=(now, now))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}.page"

    # ---- room -------------------------------------------------------------------------------

    def _make_room(self, size: int) -> None:
        """For a file of so many bytes. Processes add up what they write between two counts."""
        slack, counter = self.limit // SLACK, self.folder / ".written"
        with self._lock:
            try:
                written = int(counter.read_text()) + size
            except (OSError, ValueError):  # the first one here
                written = slack + 1
            if written > slack:
                self._evict(self.limit - max(slack, size))
                written = size
            counter.write_text(str(written))

    def _evict(self, most: int) -> None:
        """Delete the files that were not used for longest until all have `most` bytes."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= most:
                return
            with suppress(OSError):
                os.unlink(path)
            total -= size

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """When it was used, bytes and path of each page, and of what a killed process left."""
        for space in os.scandir(self.folder):
            if not space.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(space):
                if entry.name.endswith((".page", ".tmp")):
                    with suppress(OSError):  # another process deletes, too
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime_ns, found.st_size, entry.path


def _header(name: str, content: memoryview) -> bytes:
    return HEADER.pack(MAGIC, zlib.crc32(content, zlib.crc32(name.encode())), len(content))

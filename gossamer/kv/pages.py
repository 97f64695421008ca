"""Page numbers of one pool: free, in use by sequences, or idle but still known by their content."""

from collections import OrderedDict, deque

NO_PAGE = -1  # in tables: a block that has none


class OutOfPagesError(RuntimeError):
    """No page is free and none is idle; the scheduler preempts a sequence then."""


class PagePool:
    """Counts references to pages 0 to size - 1 and remembers what idle ones hold.

    A page has a name when its content is complete: the hash of all tokens up to its end. A named
    page that nobody uses is idle: it can be found by that name until it is taken for something
    else, least recently used first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = deque(range(size))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * size
        self._names: list[bytes | None] = [None] * size
        self._by_name: dict[bytes, int] = {}

    def grow(self, size: int) -> None:
        """More pages, up to `size`."""
        more = size - self.size
        self._free.extend(range(self.size, size))
        self._references += [0] * more
        self._names += [None] * more
        self.size = size

    @property
    def available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        """Pages that nobody uses, whose content can still be found."""
        return len(self._idle)

    @property
    def in_use(self) -> int:
        return self.size - self.available

    def take(self) -> int:
        """A page for new content, used once. Raises OutOfPagesError when there is none."""
        if self._free:
            page = self._free.popleft()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        else:
            raise OutOfPagesError(f"all {self.size} pages are in use")
        self._references[page] = 1
        return page

    def find(self, name: bytes) -> int | None:
        """The page that holds this content, in use or idle."""
        return self._by_name.get(name)

    def is_used(self, page: int) -> bool:
        return self._references[page] > 0

    def is_last_use(self, page: int) -> bool:
        """Whether `release` would make it available."""
        return self._references[page] == 1

    def touch(self, page: int) -> None:
        """If it is idle, it was used just now."""
        if page in self._idle:
            self._idle.move_to_end(page)

    def share(self, page: int) -> int:
        """Use a page once more; returns it."""
        self._references[page] += 1
        self._idle.pop(page, None)
        return page

    def release(self, page: int) -> None:
        """Use a page once less."""
        assert self._references[page] > 0, f"page {page} is released more often than it was taken"
        self._references[page] -= 1
        if self._references[page] == 0:
            if self._names[page] is None:
                self._free.append(page)
            else:
                self._idle[page] = None

    def name(self, page: int, name: bytes) -> None:
        """Say what the page holds. The first page of a name keeps it."""
        if self._names[page] is None and name not in self._by_name:
            self._names[page] = name
            self._by_name[name] = page

    def _forget(self, page: int) -> None:
        name = self._names[page]
        assert name is not None, f"idle page {page} has no name"
        del self._by_name[name]
        self._names[page] = None

"""Which stored page holds each block of each row of a batch."""

from collections.abc import Sequence

from gossamer.kv.pages import NO_PAGE, PagePool

SLACK = 32  # pools grow by 1/32 more than is needed, so at most 3% of a pool is idle


class PageTable:
    """Lists of pages, one per row; rows may share pages, as those of a beam search do.

    Pages are never written again once they are full, so sharing needs no counting: pages that no
    row names return to the pool when new ones are wanted.
    """

    def __init__(self, rows: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]
        self._pool = PagePool(0)
        self._taken: set[int] = set()

    @property
    def size(self) -> int:
        """Of the pools that the numbers are for."""
        return self._pool.size

    def take(self, count: int) -> list[int]:
        """Pages for new content, to be named by a row at once; `size` grows when there are few."""
        if count > self._pool.available:
            for page in self._taken - self._used():
                self._pool.release(page)
            self._taken &= self._used()
        if (missing := count - self._pool.available) > 0:
            size = self.size + missing
            self._pool.grow(size + size // SLACK)
        pages = [self._pool.take() for _ in range(count)]
        self._taken.update(pages)
        return pages

    def _used(self) -> set[int]:
        return {page for row in self.rows for page in row}

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what rows[i] is."""
        self.rows = [list(self.rows[row]) for row in rows]

    def compact(self) -> list[int]:
        """Number the pages in use 0, 1, ... anew; returns their old numbers."""
        used = sorted(self._used() - {NO_PAGE})
        new = {old: page for page, old in enumerate(used)} | {NO_PAGE: NO_PAGE}
        self.reset([[new[page] for page in row] for row in self.rows], len(used))
        return used

    def reset(self, rows: list[list[int]], size: int) -> None:
        """These pages of pools of this size are in use."""
        self.rows, self._pool = rows, PagePool(size)
        self._taken = {self._pool.take() for _ in range(size)}

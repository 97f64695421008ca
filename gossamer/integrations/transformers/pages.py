"""Which stored page holds each block of each row of a batch."""

from collections.abc import Sequence

SLACK = 32  # pools grow by one part in so many, so a pool has at most 3% that nobody needs
NO_PAGE = -1


class PageTable:
    """Lists of pages, one per row; rows may share pages, as those of a beam search do.

    Pages are never written again once they are full, so sharing needs no counting: pages that no
    row names are found when new ones are wanted. size: of the pools that the numbers are for.
    """

    def __init__(self, rows: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]
        self.size = 0
        self._free: list[int] = []

    def take(self, count: int) -> list[int]:
        """Pages for new content, to be named by a row at once; `size` grows when there are few."""
        if count > len(self._free):
            used = {page for row in self.rows for page in row}
            self._free = [page for page in range(self.size) if page not in used]
        if (missing := count - len(self._free)) > 0:
            size = self.size + missing
            size += size // SLACK
            self._free += range(self.size, size)
            self.size = size
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what rows[i] is."""
        self.rows = [list(self.rows[row]) for row in rows]

    def compact(self) -> list[int]:
        """Number the pages in use 0, 1, ... anew; returns their old numbers."""
        used = sorted({page for row in self.rows for page in row if page != NO_PAGE})
        new = {old: page for page, old in enumerate(used)} | {NO_PAGE: NO_PAGE}
        self.rows = [[new[page] for page in row] for row in self.rows]
        self.size, self._free = len(used), []
        return used

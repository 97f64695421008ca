"""Which pages a sequence has: two pools, the rule of what is dense, and the prefix cache.

`stored` pages hold blocks as the cache's layout keeps them; `dense` pages hold the blocks that
queries see uncompressed: the current one, the window before it and the sinks. A block moves from
one to the other when the sequence enters the block that pushes it out of the window. A plain cache
(dense, in the model's own type) has stored pages only.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from gossamer.engine.sequence import Sequence
from gossamer.kv.pages import NO_PAGE, OutOfPagesError, PagePool
from gossamer.kv.rule import CacheRule
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass
class Moves:
    """What a step does to pages.

    table entries to set: (row, block, page). compress: (dense page, stored page) of blocks that
    earlier steps computed. pack: (row, block, stored page) of blocks that this step computes.
    adapters: (row, slot) of sequences that are new in their row.
    """

    stored: list[tuple[int, int, int]] = field(default_factory=list)
    dense: list[tuple[int, int, int]] = field(default_factory=list)
    compress: list[tuple[int, int]] = field(default_factory=list)
    pack: list[tuple[int, int, int]] = field(default_factory=list)
    adapters: list[tuple[int, int]] = field(default_factory=list)


class BlockManager:
    """Gives pages to sequences and takes them back; raises OutOfPagesError when there are none."""

    def __init__(
        self, rule: CacheRule, stored: int, dense: int, root: bytes, prefix_caching: bool
    ) -> None:
        self.rule = rule
        self.stored = PagePool(stored)
        self.dense = PagePool(dense)
        self.root = root
        self.prefix_caching = prefix_caching and rule.shares_prefixes

    def has_room(self, seq: Sequence, tokens: int) -> bool:
        """Whether a sequence that starts now can get to `tokens`."""
        stored = self.rule.stored_blocks(tokens) - max(0, len(seq.stored) - self.rule.sink)
        dense = self.rule.dense_pages - min(len(seq.dense), self.rule.sink)
        return stored <= self.stored.available and dense <= self.dense.available

    # ---- prefix cache -------------------------------------------------------------------

    def find_prefix(self, seq: Sequence) -> int:
        """Give the sequence the pages of its longest cached prefix; returns the prefix's tokens.

        At least one token is left to compute, as its logits are needed.
        """
        assert not seq.stored + seq.dense, "it has pages already"
        if not self.prefix_caching or seq.params.prompt_logprobs:
            return 0
        names = [seq.block_hash(b, self.root) for b in range((len(seq) - 1) // BLOCK_TOKENS)]
        stored = [self.stored.find(name) for name in names]
        dense = [self.dense.find(name) for name in names]
        blocks = self.rule.longest_prefix(
            [page is not None for page in stored], [page is not None for page in dense]
        )
        if blocks:
            far = self.rule.seen_stored(blocks)
            near = {*range(blocks)}.difference(far)
            seq.stored = self._share(self.stored, stored[: far.stop], far)
            seq.dense = [] if self.rule.plain else self._share(self.dense, dense[:blocks], near)
            seq.computed = blocks * BLOCK_TOKENS
        return seq.computed

    @staticmethod
    def _share(pool: PagePool, pages: list[int | None], blocks: Container[int]) -> list[int]:
        """Use the pages of these blocks."""
        return [
            NO_PAGE if page is None or block not in blocks else pool.share(page)
            for block, page in enumerate(pages)
        ]

    def entries(self, seq: Sequence, moves: Moves) -> None:
        """Everything that a sequence new in its row has, into the tables."""
        moves.adapters.append((seq.row, seq.slot))
        moves.stored += [(seq.row, b, p) for b, p in enumerate(seq.stored) if p != NO_PAGE]
        moves.dense += [(seq.row, b, p) for b, p in enumerate(seq.dense) if p != NO_PAGE]

    # ---- one step -----------------------------------------------------------------------

    def extend(self, seq: Sequence, start: int, end: int, moves: Moves) -> list[int]:
        """Pages for computing tokens start to end - 1. OutOfPagesError changes nothing.

        Returns dense pages that the sequence has no more, but the first of these tokens still see:
        to be released when the step is over.
        """
        last = (end - 1) // BLOCK_TOKENS
        if self.rule.plain:
            self._require(stored=last + 1 - len(seq.stored), dense=0)
            for block in range(len(seq.stored), last + 1):
                seq.stored.append(self.stored.take())
                moves.stored.append((seq.row, block, seq.stored[block]))
            return []
        edge = self.rule.compressed_before(end - 1)
        new = range(len(seq.dense), last + 1)
        keeps = {block for block in new if block >= edge or block < self.rule.sink}
        next_stored = max(len(seq.stored), self.rule.sink)  # sinks stay dense
        gone = seq.dense[next_stored : self.rule.compressed_before(start)]
        freed = sum(page != NO_PAGE and self.dense.is_last_use(page) for page in gone)
        self._require(edge - next_stored, len(keeps) - freed)
        leaving: list[int] = []
        for block in range(len(seq.stored), edge):
            self._compress(seq, block, start, moves, leaving)
        for block in new:
            seq.dense.append(self.dense.take() if block in keeps else NO_PAGE)
            moves.dense.append((seq.row, block, seq.dense[block]))
        return leaving

    def _require(self, stored: int, dense: int) -> None:
        """OutOfPagesError before anything is taken."""
        if stored > self.stored.available or dense > self.dense.available:
            raise OutOfPagesError(
                f"{stored} stored and {dense} dense pages wanted; "
                f"{self.stored.available} and {self.dense.available} available"
            )

    def _compress(
        self, seq: Sequence, block: int, start: int, moves: Moves, leaving: list[int]
    ) -> None:
        """The next block gets its stored page and gives its dense one back."""
        if block < self.rule.sink:
            seq.stored.append(NO_PAGE)
            return
        found = self.stored.find(seq.block_hash(block, self.root)) if self.prefix_caching else None
        page = self.stored.take() if found is None else self.stored.share(found)
        seq.stored.append(page)
        moves.stored.append((seq.row, block, page))
        if found is None and block * BLOCK_TOKENS >= start:
            moves.pack.append((seq.row, block, page))
        elif found is None:
            moves.compress.append((seq.dense[block], page))
        if block < len(seq.dense):
            if block >= self.rule.compressed_before(start):
                leaving.append(seq.dense[block])
            else:
                # Given back before it is read, but a step compresses before it writes anything.
                self.dense.release(seq.dense[block])
            seq.dense[block] = NO_PAGE

    def keep_for_prefixes(
        self, seq: Sequence, start: int, end: int, moves: Moves
    ) -> list[tuple[int, int]]:
        """Dense pages for blocks that only a later prompt may need dense: (block, page).

        Who shares a prefix of a prompt starts anywhere in it, and needs the window before that.
        """
        kept: list[tuple[int, int]] = []
        if self.rule.plain or not self.prefix_caching or self.rule.window == 0:
            return kept
        for block in range(start // BLOCK_TOKENS, end // BLOCK_TOKENS):
            if seq.dense[block] != NO_PAGE or not self.dense.available:
                continue
            if self.dense.find(seq.block_hash(block, self.root)) is None:
                page = self.dense.take()
                kept.append((block, page))
                moves.dense.append((seq.row, block, page))
        return kept

    def commit(
        self, seq: Sequence, start: int, end: int, stored_before: int, kept: list[tuple[int, int]]
    ) -> None:
        """The step has computed tokens start to end - 1: complete pages can be found from now."""
        for block, page in kept:
            self.dense.name(page, seq.block_hash(block, self.root))
            self.dense.release(page)
        if not self.prefix_caching:
            return
        first, complete = start // BLOCK_TOKENS, end // BLOCK_TOKENS
        since = first if self.rule.plain else stored_before
        for block in range(since, min(len(seq.stored), complete)):
            self._name(self.stored, seq, block, seq.stored[block])
        for block in range(first, min(len(seq.dense), complete)):
            self._name(self.dense, seq, block, seq.dense[block])

    def drop(self, pages: Iterable[int]) -> None:
        """Give back dense pages: what `extend` returned, or `keep_for_prefixes` took in vain."""
        for page in pages:
            self.dense.release(page)

    def release(self, seq: Sequence) -> None:
        """Take all pages back; complete ones can still be found.

        The end of a sequence is forgotten first: beginnings are what others share.
        """
        for pool, pages in ((self.stored, seq.stored), (self.dense, seq.dense)):
            for page in reversed(pages):
                if page != NO_PAGE:
                    pool.release(page)
            pages.clear()

    def _name(self, pool: PagePool, seq: Sequence, block: int, page: int) -> None:
        if page != NO_PAGE:
            pool.name(page, seq.block_hash(block, self.root))

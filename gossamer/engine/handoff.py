"""Pages of prompts from engine to engine, through a PageStore.

One engine publishes the pages that whoever continues a prompt will read; another looks a prompt up
when it comes and puts what it finds into its prefix cache, where the scheduler finds it as if it
had been computed here. Pages are read and written in background threads; the engine's own thread
copies between the cache and host memory, between steps.
"""

import logging
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self
from weakref import WeakKeyDictionary

from gossamer.engine.block_manager import BlockManager
from gossamer.engine.build import Built
from gossamer.engine.config import EngineConfig
from gossamer.engine.scheduler import Scheduler
from gossamer.engine.sequence import Sequence, Status
from gossamer.engine.stored_prompts import Found, Page, StoredPrompts
from gossamer.kv.host_copies import HostCopies
from gossamer.kv.page_store import PageStore
from gossamer.kv.pages import PagePool
from gossamer.ops.checks import dtype_name
from gossamer.ops.kv_block import BLOCK_TOKENS

log = logging.getLogger("gossamer.engine")
UNWRITTEN = 1 << 30  # bytes; while more than that waits to be written, prompts are not published
AHEAD = 1 << 15  # tokens of prompts that are looked up, and as many that wait, before others are
UNUSED = 1 << 30  # bytes of prompts that are looked up, before others are
PATIENCE = 0.02  # seconds that a step with nothing to compute waits for the store


@dataclass(frozen=True)
class Write:
    """Pages on their way into the store, and their bytes."""

    done: Future[None]
    pages: frozenset[Page]
    nbytes: int


class Handoff:
    """One engine's side of a store. All methods are for the engine's thread.

    role: prefill (publishes), decode (looks prompts up), or both. space: see StoredPrompts.
    published_bytes, fetched_bytes: so far.
    """

    def __init__(
        self, store: PageStore, role: str, space: str, manager: BlockManager, copies: HostCopies
    ) -> None:
        self._prompts = StoredPrompts(store, space, manager.rule, copies)
        self._role, self._manager, self._copies = role, manager, copies
        self.fetched_bytes = 0
        self._reader = ThreadPoolExecutor(1, "gossamer kv reader")
        self._writer = ThreadPoolExecutor(1, "gossamer kv writer")
        self._coming: deque[list[Sequence]] = deque()
        self._ahead = 0  # tokens that are being looked up
        page = max(copies.page_bytes(False), copies.page_bytes(True))
        self._most_ahead = min(AHEAD, UNUSED * BLOCK_TOKENS // page)
        self._lookups: deque[tuple[list[Sequence], Future[Found]]] = deque()
        self._there: WeakKeyDictionary[Sequence, set[Page]] = WeakKeyDictionary()
        self._writes: deque[Write] = deque()
        self._last_write: WeakKeyDictionary[Sequence, Write] = WeakKeyDictionary()

    @classmethod
    def of(cls, config: EngineConfig, built: Built, manager: BlockManager) -> Self | None:
        """None for an engine that shares no pages."""
        if built.store is None:
            return None
        space, role = built.root[:8].hex(), config.kv_role
        about = f"{built.source.name}, {built.kv}, {dtype_name(built.dtype)}"
        others = built.store.open_space(space, about)
        log.info("KV transfer by %s: %s of %s (%s)", config.kv_transfer, role, about, space)
        if others:
            log.warning(
                "%s has pages of other weights, caches or types only: %s",
                config.kv_transfer,
                "; ".join(others),
            )
        return cls(built.store, role, space, manager, HostCopies(built.runner.cache))

    # ---- prompts that come --------------------------------------------------------------

    def look_up(self, seqs: list[Sequence]) -> None:
        """Look for the prompt that these sequences share; they come out of `arrived`, in order."""
        self._coming.append(seqs)
        self._look_ahead()

    def arrived(self, scheduler: Scheduler) -> list[Sequence]:
        """The next that were looked up, to be added to this scheduler.

        What was found of their prompts can be found by prefix from now on. Not before they can
        start: others would take the pages for themselves otherwise.
        """
        arrived, waiting = list[Sequence](), [*scheduler.waiting]
        ahead = sum(map(len, waiting))
        self._keep(waiting)
        while self._lookups and self._lookups[0][1].done() and ahead < AHEAD:
            seqs, done = self._lookups[0]
            found = done.result()
            going = [seq for seq in seqs if seq.status is not Status.FINISHED]
            if going and found.content and not self._can_start(going, waiting, scheduler):
                break
            self._lookups.popleft()
            self._ahead -= len(seqs[0].prompt_ids)
            if going:
                self._adopt(found)
                self._there.update(dict.fromkeys(going, found.there))
            arrived += going
            waiting += going
            ahead += sum(map(len, going))
            self._look_ahead()
        return arrived

    def _keep(self, waiting: list[Sequence]) -> None:
        """Their pages are the last that others take."""
        for seq in reversed(waiting):
            for page in reversed(self._prompts.prefix(self._hashes(seq))):
                pool = self._pool(page)
                number = pool.find(page.hash)
                if number is not None:
                    pool.touch(number)

    def _can_start(
        self, going: list[Sequence], waiting: list[Sequence], scheduler: Scheduler
    ) -> bool:
        """Whether they could now, after those that wait. A page that several share counts once."""
        if not scheduler.running and not waiting:
            return True
        if scheduler.free_rows <= len(waiting):
            return False
        rule, pages, stored, dense = self._manager.rule, set[Page](), 0, 0
        for seq in [*waiting, *going]:
            prefix = self._prompts.prefix(self._hashes(seq))
            near = sum(page.dense for page in prefix)
            stored += rule.stored_blocks(len(seq)) - (len(prefix) - near)
            dense += rule.most_dense_pages - near
            pages.update(prefix)
        for page in pages:
            pool = self._pool(page)
            number = pool.find(page.hash)
            if number is None or not pool.is_used(number):  # else it takes no room
                stored, dense = stored + (not page.dense), dense + page.dense
        return stored <= self._manager.stored.available and dense <= self._manager.dense.available

    @property
    def waiting(self) -> int:
        """Sequences that are going to come out of `arrived`."""
        return sum(map(len, self._coming)) + sum(len(seqs) for seqs, _ in self._lookups)

    def _look_ahead(self) -> None:
        """Keep the reader at work, but not so far ahead that memory fills with what it found."""
        manager = self._manager
        while self._coming and self._ahead < self._most_ahead:
            seqs = self._coming.popleft()
            seq = seqs[0]
            self._ahead += len(seq.prompt_ids)
            hashes = self._hashes(seq)
            own = {Page(False, name) for name in hashes if manager.stored.find(name) is not None}
            own |= {Page(True, name) for name in hashes if manager.dense.find(name) is not None}
            fetches = self._role != "prefill" and not seq.params.prompt_logprobs
            self._lookups.append(
                (seqs, self._reader.submit(self._prompts.find, hashes, own, fetches))
            )

    def wait(self) -> None:
        """A moment, or until something is done in the background."""
        self._forget_written()
        jobs: list[Future[Any]] = [done for _, done in islice(self._lookups, 1)]
        jobs += [write.done for write in islice(self._writes, 1)]
        wait(jobs, PATIENCE, FIRST_COMPLETED)

    def _adopt(self, found: Found) -> None:
        """Into pages that nobody uses, as if computed before; nothing if there are too few."""
        mine = list[tuple[PagePool, int]]()
        try:
            self._fill(found, mine)
        except Exception:  # as no memory on the device; what is not there is computed
            log.exception("pages that were found cannot be used")
        finally:
            for pool, number in reversed(mine):  # as BlockManager.release: its end goes first
                pool.release(number)

    def _fill(self, found: Found, mine: list[tuple[PagePool, int]]) -> None:
        """Pages of what was found; they are in use, and in `mine`, also when a copy fails."""
        new = list[Page]()
        for page in found.prefix:
            pool = self._pool(page)
            number = pool.find(page.hash)
            if number is not None:  # else it could be taken for another page of the prefix
                mine.append((pool, pool.share(number)))
            elif page in found.content:
                new.append(page)
        dense = sum(page.dense for page in new)
        stored_room, dense_room = self._manager.stored.available, self._manager.dense.available
        if dense <= dense_room and len(new) - dense <= stored_room:
            for page in new:
                pool, copy = self._pool(page), found.content[page]
                number = pool.take()
                mine.append((pool, number))
                self._copies.write(copy, page.dense, number)
                pool.name(number, page.hash)
                self.fetched_bytes += copy.nbytes

    # ---- prompts that were computed -------------------------------------------------------

    def publish(self, seq: Sequence) -> None:
        """After the step that computed the end of its prompt, before the next moves its pages."""
        self._forget_written()
        there = self._there.pop(seq, None)
        if there is None or self._role == "decode":
            return
        if sum(write.nbytes for write in self._writes) > UNWRITTEN:
            log.warning("a prompt is not published: the store is too slow")
            return
        known = there.union(*(write.pages for write in self._writes))
        new = {
            page: block
            for block, page in enumerate(self._prompts.prefix(self._hashes(seq)))
            if page not in known
        }
        try:
            self._write(seq, new)
        except Exception as error:  # as no memory that can be pinned
            log.warning("a prompt is not published: %s", error)
            return
        there.update(new)  # which other outputs of the request share
        if self._writes:  # also where all of its pages are another's
            self._last_write[seq] = self._writes[-1]

    def _write(self, seq: Sequence, new: dict[Page, int]) -> None:
        """Copy these blocks of the sequence, and begin to write the copies."""
        copies = {
            page: self._copies.read(page.dense, (seq.dense if page.dense else seq.stored)[block])
            for page, block in new.items()
        }
        if copies:
            nbytes = sum(copy.nbytes for copy in copies.values())
            done = self._writer.submit(self._prompts.write, copies, self._copies.recorded())
            self._writes.append(Write(done, frozenset(copies), nbytes))

    def _forget_written(self) -> None:
        while self._writes and self._writes[0].done.done():
            self._writes.popleft()

    def holds(self, seq: Sequence) -> bool:
        """Whether its end is not to be told yet: who hears of it may expect to find its pages."""
        last = self._last_write.get(seq)
        return self._role == "prefill" and last is not None and not last.done.done()

    def close(self) -> None:
        """Waits until everything is written."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self._coming.clear()
        self._lookups.clear()

    @property
    def published_bytes(self) -> int:
        return self._prompts.published_bytes

    def _hashes(self, seq: Sequence) -> list[bytes]:
        """Of the blocks of its prompt that a cached prefix can have; see find_prefix."""
        blocks = (len(seq.prompt_ids) - 1) // BLOCK_TOKENS
        return [seq.block_hash(block, self._manager.root) for block in range(blocks)]

    def _pool(self, page: Page) -> PagePool:
        return self._manager.dense if page.dense else self._manager.stored

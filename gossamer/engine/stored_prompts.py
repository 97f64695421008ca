"""Prompts in a PageStore: which of their pages are there, and how they come and go.

Everything here runs in background threads of an engine.
"""

import logging
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kv.host_copies import HostCopies
from gossamer.kv.page_store import PageStore
from gossamer.kv.rule import CacheRule

log = logging.getLogger("gossamer.engine")


class Page(NamedTuple):
    """dense: of which pool. hash: of all tokens up to its end, see Sequence.block_hash."""

    dense: bool
    hash: bytes


@dataclass(frozen=True)
class Found:
    """What a store has of a prompt.

    there: pages in it. prefix: the pages of the longest prefix that can be had; content: of those
    that the engine did not have itself.
    """

    there: set[Page]
    prefix: list[Page]
    content: dict[Page, Tensor]


class StoredPrompts:
    """What an engine reads and writes of a store.

    space: of its pages there, all of the same model and cache. hashes: of a prompt's blocks.
    """

    def __init__(self, store: PageStore, space: str, rule: CacheRule, copies: HostCopies) -> None:
        self._store, self._space, self._rule, self._copies = store, space, rule, copies
        self.published_bytes = 0

    def prefix(self, hashes: list[bytes]) -> list[Page]:
        """The pages, one for each block, that tokens after these blocks see."""
        far = self._rule.seen_stored(len(hashes))
        return [Page(block not in far, name) for block, name in enumerate(hashes)]

    def find(self, hashes: list[bytes], own: set[Page], fetches: bool) -> Found:
        """The longest prefix in the store and the engine's own pages together."""
        try:
            if not fetches:
                return Found(self._touched(self.prefix(hashes)), [], {})
            return self._fetch(hashes, own)
        except Exception:  # of any store; the prompt is then computed
            log.exception("the store of pages cannot be read")
            return Found(set(), [], {})

    def _fetch(self, hashes: list[bytes], own: set[Page]) -> Found:
        rule = self._rule
        sides = [[Page(dense, name) for name in hashes] for dense in (False, True)]
        if rule.plain:
            sides[1] = []
        there = self._touched([page for both in zip_longest(*sides) for page in both if page])
        content: dict[Page, Tensor] = {}
        while True:
            at_hand = own | there
            blocks = rule.longest_prefix(*([page in at_hand for page in side] for side in sides))
            prefix = self.prefix(hashes[:blocks])
            wanted = [page for page in prefix if page not in own and page not in content]
            lost = next((page for page in wanted if not self._get(page, content)), None)
            if lost is None:
                return Found(there, prefix, content)
            there.discard(lost)

    def _touched(self, pages: list[Page]) -> set[Page]:
        by_name = {self._name(page): page for page in pages}
        return {by_name[name] for name in self._store.touch(by_name)}

    def _get(self, page: Page, content: dict[Page, Tensor]) -> bool:
        copy = self._copies.empty(page.dense)
        if self._store.get(self._name(page), copy):
            content[page] = copy
        return page in content

    def write(self, copies: dict[Page, Tensor], copied: torch.cuda.Event | None) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            for page, copy in reversed(copies.items()):  # the beginning last, to be deleted last
                self._store.put(self._name(page), copy)
                self.published_bytes += copy.nbytes
        except Exception as error:  # of any store; others will compute the prompt themselves
            log.warning("a prompt is not published: %s", error)

    def _name(self, page: Page) -> str:
        return f"{self._space}/{page.hash.hex()}.{'dense' if page.dense else 'stored'}"

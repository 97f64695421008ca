"""A store of pages in memory, which may forget them at any time."""

import random
import threading
from typing import Any

import torch


class Shelf:
    """A PageStore in memory. With `rng` it forgets pages, between any two calls."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.pages: dict[str, torch.Tensor] = {}
        self._rng, self._lock = rng, threading.Lock()

    def open_space(self, space: str, about: str) -> list[str]:
        return []

    def _forget(self) -> None:
        if self._rng is not None and self.pages and self._rng.random() < 0.1:
            del self.pages[self._rng.choice(list(self.pages))]

    def touch(self, names: Any) -> set[str]:
        with self._lock:
            self._forget()
            return self.pages.keys() & set(names)

    def get(self, name: str, page: torch.Tensor) -> bool:
        with self._lock:
            self._forget()
            if name in self.pages:
                page.copy_(self.pages[name])
            return name in self.pages

    def put(self, name: str, page: torch.Tensor) -> None:
        with self._lock:
            self._forget()
            self.pages[name] = page.clone()


class Slow(Shelf):
    """Does nothing until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.may_read, self.may_write = threading.Event(), threading.Event()

    def touch(self, names: Any) -> set[str]:
        assert self.may_read.wait(60)
        return super().touch(names)

    def put(self, name: str, page: torch.Tensor) -> None:
        assert self.may_write.wait(60)
        super().put(name, page)

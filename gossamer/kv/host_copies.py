"""Pages of a cache in the memory of the host, and back, in the order of the steps of an engine."""

from collections.abc import Iterable

import torch
from torch import Tensor

from gossamer.kv.paged_cache import PagedCache


class HostCopies:
    """Pages of a cache as uint8 [bytes] on the host: K, then V."""

    def __init__(self, cache: PagedCache) -> None:
        pools = cache.pools
        self._pools = {False: (pools["k"], pools["v"])}
        if "dense_k" in pools:
            self._pools[True] = (pools["dense_k"], pools["dense_v"])
        self._device = cache.spec.device
        self._on_gpu = self._device.type == "cuda"

    def page_bytes(self, dense: bool) -> int:
        """0 for dense pages of a cache without them."""
        return sum(pool[0].numel() for pool in self._pools.get(dense, ()))

    def empty(self, dense: bool) -> Tensor:
        # A copy from or to memory that is not pinned would wait for the device.
        size = self.page_bytes(dense)
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._on_gpu)

    def read(self, dense: bool, page: int) -> Tensor:
        """What steps until now leave in the page; complete after the event of `recorded`."""
        copy = self.empty(dense)
        for part, own in self._parts(copy, dense, page):
            part.copy_(own, non_blocking=True)
        return copy

    def write(self, copy: Tensor, dense: bool, page: int) -> None:
        """For all steps from now on."""
        for part, own in self._parts(copy, dense, page):
            own.copy_(part, non_blocking=True)

    def recorded(self) -> torch.cuda.Event | None:
        """After all copies so far; None on a CPU, where they are made at once."""
        if not self._on_gpu:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _parts(self, copy: Tensor, dense: bool, page: int) -> Iterable[tuple[Tensor, Tensor]]:
        owns = [pool[page].view(-1) for pool in self._pools[dense]]
        return zip(copy.split([own.numel() for own in owns]), owns, strict=True)

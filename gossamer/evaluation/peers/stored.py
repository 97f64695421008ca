"""Methods that keep every token, beyond a window in fewer bytes: what is stored never changes."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.evaluation.peers.method import LayerCache, Method, Seen, causal

Store = Callable[[Tensor], Tensor]


class StoredMethod(Method):
    """unit: tokens that are stored together, aligned from the first token of the sequence."""

    unit: ClassVar[int] = 1

    @abstractmethod
    def store_k(self, k: Tensor) -> Tensor:
        """Keys [batch, heads, a multiple of `unit`, D] as they come back from the cache."""

    @abstractmethod
    def store_v(self, v: Tensor) -> Tensor:
        """Values, likewise."""

    @abstractmethod
    def sees_exact(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether queries at these positions see keys at those exactly; the tensors broadcast.

        Must hold for every key of an incomplete unit.
        """

    def start(self, length: int) -> "StoredCache":
        return StoredCache(self)


class StoredCache(LayerCache):
    """Remembers what was stored, so that a decoded token costs one unit and not all of them."""

    def __init__(self, method: StoredMethod) -> None:
        self.method = method
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def seen(self, k: Tensor, v: Tensor, positions: Tensor) -> Seen:
        self._k = self._extend(self._k, k, self.method.store_k)
        self._v = self._extend(self._v, v, self.method.store_v)
        tail = self._k.shape[2]
        keys = torch.arange(k.shape[2], device=k.device)
        return Seen(
            torch.cat([self._k, k[:, :, tail:]], 2),
            torch.cat([self._v, v[:, :, tail:]], 2),
            self.method.sees_exact(positions[:, None], keys),
            causal(positions, k.shape[2]),
        )

    def _extend(self, known: Tensor | None, x: Tensor, store: Store) -> Tensor:
        old = 0 if known is None else known.shape[2]
        whole = x.shape[2] // self.method.unit * self.method.unit
        if old == whole:
            return x[:, :, :0] if known is None else known
        new = store(x[:, :, old:whole]).to(x.dtype)
        return new if known is None else torch.cat([known, new], 2)

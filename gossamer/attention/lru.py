"""Masks that were prepared for calls with plain masks; the last ones used are kept."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.attention.checks import check_same_device, user_tensors
from gossamer.attention.prepared import PreparedMask, prepare
from gossamer.masks import Mask

MOST_MASKS = 64


@dataclass(frozen=True, eq=False)
class _Entry:
    mask: PreparedMask
    versions: tuple[tuple[Tensor, int], ...]  # of the user's tensors, to see them change

    @property
    def fresh(self) -> bool:
        return all(_version(tensor) == version for tensor, version in self.versions)


class PreparedMasks:
    """Least recently used ones are forgotten. Equal masks share an entry."""

    def __init__(self, size: int = MOST_MASKS) -> None:
        self.size = size
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def get(self, mask: Mask, q_len: int, kv_len: int, device: torch.device) -> PreparedMask:
        """The mask, prepared for these lengths and this device."""
        key = (mask, q_len, kv_len, device)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry.fresh:
                self._entries.move_to_end(key)
                return entry.mask
        check_same_device(mask, device)
        versions = tuple((tensor, _version(tensor)) for _, tensor in user_tensors(mask))
        entry = _Entry(prepare(mask, q_len, kv_len, device), versions)
        with self._lock:
            self._entries[key] = entry
            while len(self._entries) > self.size:
                self._entries.popitem(last=False)
        return entry.mask


def _version(tensor: Tensor) -> int:
    """Counts writes; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version

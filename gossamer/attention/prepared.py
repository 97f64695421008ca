"""A mask made ready for calls of one length on one device."""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.attention.cost import TileFacts
from gossamer.masks import Causal, DenseMask, DocumentIds, Full, Mask, TileMap
from gossamer.masks.base import Device
from gossamer.masks.checks import LONGEST, as_device, whole
from gossamer.masks.tiles import put
from gossamer.masks.work import work_list

Tile = tuple[int, int]
MOST_MASKS = 64  # that are kept prepared for calls with plain masks
HOST_BOXES = 1 << 14  # of a map for the host: it takes milliseconds, a GPU about 7 with its waits
MOST_PLANS = 256  # a mask that meets more kinds of calls forgets those it knows


class PreparedMask:
    """What kernels read of a mask, and which kernel each kind of call gets. See `prepare`.

    Maps are built when a kernel needs them; `nbytes` says what they take.
    """

    def __init__(self, mask: Mask, q_len: int, kv_len: int, device: torch.device) -> None:
        self.mask = mask
        self.q_len = q_len
        self.kv_len = kv_len
        self.device = device
        self.plans: dict[Any, Any] = {}  # by kind of call; see masked_attention.py
        self._built: dict[Tile, TileMap] = {}  # where it took the least time
        self._maps: dict[Tile, TileMap] = {}  # on the device
        self._facts: dict[Tile, TileFacts] = {}
        self._works: dict[tuple[Tile, int], Tensor] = {}
        self._lists: tuple[Tensor, Tensor] | None = None
        self._dense: Tensor | None = None
        self._shape: str | None = None

    def __repr__(self) -> str:
        return f"PreparedMask({self.mask}, {self.q_len}, {self.kv_len}, {str(self.device)!r})"

    @property
    def nbytes(self) -> int:
        """Of everything that is kept for calls."""
        kept = [*self._maps.values(), *self._works.values(), *(self._lists or ())]
        if self._dense is not None:
            kept.append(self._dense)
        return sum(int(thing.nbytes) for thing in kept)

    def tiles(self, tile: Tile) -> TileMap:
        """The mask in tiles of this size; kept."""
        found = self._maps.get(tile)
        if found is None:
            found = self._maps[tile] = self._map(tile).to(self.device)
        return found

    def _map(self, tile: Tile) -> TileMap:
        """The same, on the host or on the device."""
        found = self._built.get(tile) or self._maps.get(tile)
        if found is None:  # locals are returned: another thread may forget what is kept here
            boxes = (self.q_len // tile[0] + 1) * (self.kv_len // tile[1] + 1)
            small = boxes <= HOST_BOXES and next(_user_tensors(self.mask), None) is None
            place = torch.device("cpu") if small else self.device
            found = TileMap.build(self.mask, self.q_len, self.kv_len, tile, place)
            self._built[tile] = found
        return found

    def facts(self, tile: Tile) -> TileFacts:
        """How many tiles of this size there are in each row. May wait for the device, once."""
        if tile not in self._facts:
            self._facts[tile] = TileFacts.of(self._map(tile))
        return self._facts[tile]

    def work(self, tile: Tile, limit: int) -> Tensor:
        """Rows in pieces of at most `limit` tiles, for the CUDA kernel; 0: whole rows."""
        found = self._works.get((tile, limit))
        if found is None:
            found = put(work_list(self._map(tile), limit or 1 << 30), self.device)
            self._works[tile, limit] = found
        return found

    def lists(self) -> tuple[Tensor, Tensor]:
        """The keys of each query, for the row kernel."""
        if self._lists is None:
            self._lists = self.tiles((64, 64)).key_lists()
        return self._lists

    def dense(self) -> Tensor:
        """bool [batch or 1, heads or 1, q_len, kv_len]."""
        if self._dense is None:
            self._dense = self.mask.dense(self.q_len, self.kv_len, self.device)
        return self._dense

    @property
    def plain(self) -> str | None:
        """ "full" or "causal" where that is known without looking."""
        if isinstance(self.mask, Full):
            return "full"
        return "causal" if self.mask == Causal() and self.q_len == self.kv_len else None

    def shape(self, tile: Tile = (64, 64)) -> str:
        """ "full" or "causal" where the mask is just that at these lengths, else "other"."""
        if self._shape is None:
            self._shape = self.plain
        if self._shape is None:
            density = self.facts(tile).density
            if density == 1:  # counted, not estimated
                self._shape = "full"
            elif self.q_len == self.kv_len and density == (self.q_len + 1) / (2 * self.q_len):
                mine = self._map(tile)
                causal = TileMap.build(Causal(), self.q_len, self.kv_len, tile, mine.device)
                same = mine.same_mask(causal)
                self._shape = "causal" if same else "other"
            else:
                self._shape = "other"
        return self._shape

    def keep(self, plan: Any, key: Any) -> None:
        """Remember what a kind of call gets, and forget maps that no plan uses."""
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan
        candidates = [known.candidate for known in self.plans.values()]
        used = {candidate.tile for candidate in candidates}
        self._built.clear()
        self._maps = {tile: m for tile, m in self._maps.items() if tile in used}
        self._works = {name: w for name, w in self._works.items() if name[0] in used}
        if not any(candidate.backend == "mask" for candidate in candidates):
            self._dense = None


def prepare(mask: Mask, q_len: int, kv_len: int, device: Device = None) -> PreparedMask:
    """A mask ready for q_len queries and kv_len keys on a device; its tables are moved there.

    Give it to `masked_attention` in place of the mask: calls then take no time for look-ups, and
    its maps live as long as it does. Which kernel is best is found in the first call of each shape
    and dtype, so call once before you capture a CUDA graph. Raises TypeError or ValueError.
    """
    if not isinstance(mask, Mask):
        raise TypeError(f"prepare: mask is {type(mask).__name__}; must be a gossamer.masks.Mask")
    whole("prepare", "q_len", q_len, 0, LONGEST)
    whole("prepare", "kv_len", kv_len, 0, LONGEST)
    mask.check(q_len, kv_len)
    return PreparedMask(mask, q_len, kv_len, as_device(device))


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
        _check_device(mask, device)
        versions = tuple((tensor, _version(tensor)) for _, tensor in _user_tensors(mask))
        entry = _Entry(prepare(mask, q_len, kv_len, device), versions)
        with self._lock:
            self._entries[key] = entry
            while len(self._entries) > self.size:
                self._entries.popitem(last=False)
        return entry.mask


PREPARED = PreparedMasks()  # of this process


def _version(tensor: Tensor) -> int:
    """Counts writes; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _check_device(mask: Mask, device: torch.device) -> None:
    """Tensors of the user are not moved: in every call that would be slow in silence."""
    for name, tensor in _user_tensors(mask):
        if tensor.device != device:
            raise ValueError(
                f"masked_attention: {name} is on {tensor.device}; must be on {device}, the device "
                f"of q: use mask.to({str(device)!r})"
            )


def _user_tensors(mask: Mask) -> Iterator[tuple[str, Tensor]]:
    """Tensors that the user gave to the mask; tables that masks make for themselves are not."""
    for part in dict.fromkeys(mask.parts):
        yield from _user_tensors(part)
    if isinstance(mask, DenseMask):
        yield "DenseMask", mask.allowed
    elif isinstance(mask, DocumentIds):
        yield "DocumentIds", mask.ids

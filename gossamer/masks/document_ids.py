"""Documents, given by the document that each token belongs to."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gossamer.masks.base import Device, Mask
from gossamer.masks.checks import as_device, same_device
from gossamer.masks.shapes import kinds


class RangeBounds:
    """Minimum and maximum of any range of a row of integers [rows, n], in two look-ups.

    Level l holds the bounds of 2^l values from each place on.
    """

    def __init__(self, values: Tensor) -> None:
        lows, highs = [values], [values]
        step = 1
        while 2 * step <= values.shape[1]:
            lows.append(_doubled(lows[-1], step, torch.minimum))
            highs.append(_doubled(highs[-1], step, torch.maximum))
            step *= 2
        self.lows, self.highs = torch.stack(lows, 1), torch.stack(highs, 1)  # [rows, levels, n]

    def of(self, row: Tensor, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """Minimum and maximum of [start, stop), which is not empty."""
        level = (stop - start).double().log2().long()
        second = stop - (torch.ones_like(level) << level)
        ends = ((row, level, start), (row, level, second))
        low = torch.minimum(*(self.lows[end] for end in ends))
        return low, torch.maximum(*(self.highs[end] for end in ends))


@dataclass(frozen=True, eq=False)
class DocumentIds(Mask):
    """A query sees the keys with its id. Negative ids are padding: they see and are seen by none.

    `ids` are integers [n] or [batch, n], in any order; `key_ids` where keys have others. Two such
    masks are equal only if they are the same object. `dense`, `TileMap.build` and `to` move it.
    """

    ids: Tensor
    key_ids: Tensor | None = None

    def __post_init__(self) -> None:
        queries = _checked("ids", self.ids)
        keys = queries if self.key_ids is None else _checked("key_ids", self.key_ids)
        if len(queries) != len(keys):
            raise ValueError(
                f"DocumentIds: ids of {len(queries)} batch elements, key_ids of {len(keys)}; "
                "must be equally many"
            )
        if queries.device != keys.device:
            raise ValueError(
                f"DocumentIds: ids on {queries.device}, key_ids on {keys.device}; must be the same"
            )
        # Padding of queries and of keys differs, so that no comparison finds them equal.
        object.__setattr__(self, "ids", torch.where(queries < 0, -1, queries))
        object.__setattr__(self, "key_ids", torch.where(keys < 0, -2, keys))

    def __repr__(self) -> str:
        return f"DocumentIds({list(self.ids.shape)}, {self.ids.device})"

    @property
    def keys(self) -> Tensor:
        assert self.key_ids is not None, "set by __post_init__"
        return self.key_ids

    @property
    def batch(self) -> int | None:
        return len(self.ids) if len(self.ids) > 1 else None

    @property
    def lengths(self) -> tuple[int, int]:
        return self.ids.shape[1], self.keys.shape[1]

    def predicate(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same_device("DocumentIds", self.ids, q)
        if self.batch is None:
            return self.ids[0][q] == self.keys[0][k]
        return self.ids[b, q] == self.keys[b, k]

    def classify(
        self, q0: Tensor, q1: Tensor, k0: Tensor, k1: Tensor, b: Tensor, h: Tensor
    ) -> Tensor:
        element = b if self.batch else torch.zeros_like(b)
        q_low, q_high = self._bounds[0].of(element, q0, q1)
        k_low, k_high = self._bounds[1].of(element, k0, k1)
        empty = (q_low > k_high) | (k_low > q_high)
        return kinds(empty, full=(q_low == k_high) & (q_high == k_low))

    @cached_property
    def _bounds(self) -> tuple[RangeBounds, RangeBounds]:
        return RangeBounds(self.ids), RangeBounds(self.keys)

    def at(self, b: int, h: int) -> Mask:
        return self if self.batch is None else DocumentIds(self.ids[b], self.keys[b])

    def to(self, device: Device) -> Mask:
        if as_device(device) == self.ids.device:
            return self
        return DocumentIds(self.ids.to(device), self.keys.to(device))


def _checked(name: str, ids: Tensor) -> Tensor:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        found = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"DocumentIds: {name} is {found}; must be a tensor of int32 or int64")
    if ids.dim() not in (1, 2) or 0 in ids.shape:
        raise ValueError(
            f"DocumentIds: {name} has shape {list(ids.shape)}; must be [n] or [batch, n], not empty"
        )
    return ids.view(-1, ids.shape[-1])


def _doubled(bounds: Tensor, step: int, bound: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Places too near to the end keep what they have: nobody asks them for that many."""
    out = bounds.clone()
    out[:, :-step] = bound(bounds[:, :-step], bounds[:, step:])
    return out

"""Packed documents that do not see each other."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.masks.checks import whole
from gossamer.masks.document_ids import DocumentIds
from gossamer.masks.shapes import Composite


@dataclass(frozen=True, init=False)
class Documents(Composite):
    """Documents of these lengths, one after the other; a query sees the keys of its document.

    `key_lengths` are for documents with more (or fewer) keys than queries; `& Causal()` then means
    little, since it compares places in the pack. `DocumentIds` knows padding and any order.
    """

    sizes: tuple[int, ...]
    key_sizes: tuple[int, ...]

    def __init__(
        self, lengths: Sequence[int] | Tensor, key_lengths: Sequence[int] | Tensor | None = None
    ) -> None:
        sizes = _numbers("lengths", lengths)
        key_sizes = sizes if key_lengths is None else _numbers("key_lengths", key_lengths)
        if len(sizes) != len(key_sizes):
            raise ValueError(
                f"Documents: {len(sizes)} lengths and {len(key_sizes)} key_lengths; "
                "must be equally many"
            )
        if not sum(sizes) or not sum(key_sizes):
            raise ValueError("Documents: lengths are all 0; one of them must be at least 1")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "key_sizes", key_sizes)
        self.compose(DocumentIds(_ids(sizes), _ids(key_sizes)))

    @classmethod
    def from_cu_seqlens(
        cls, queries: Sequence[int] | Tensor, keys: Sequence[int] | Tensor | None = None
    ) -> "Documents":
        """From where documents start, and where the last one ends: [0, 5, 12] are 5 and 7 long."""
        key_lengths = None if keys is None else _differences(keys)
        return cls(_differences(queries), key_lengths)


def _numbers(name: str, values: Any) -> tuple[int, ...]:
    listed = values.tolist() if isinstance(values, Tensor) else values
    return tuple(whole("Documents", name, value, 0) for value in listed)


def _differences(starts: Sequence[int] | Tensor) -> list[int]:
    listed = _numbers("cu_seqlens", starts)
    if not listed or listed[0] != 0 or list(listed) != sorted(listed):
        raise ValueError(
            f"Documents: cu_seqlens are {list(listed[:8])}...; must start with 0 and not decrease"
        )
    return [end - start for start, end in itertools.pairwise(listed)]


def _ids(sizes: tuple[int, ...]) -> Tensor:
    counts = torch.tensor(sizes)
    return torch.arange(len(sizes)).repeat_interleave(counts)

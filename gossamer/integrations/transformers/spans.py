"""Rows of a padded batch that have their tokens in the same columns."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Columns start to end - 1 are tokens in these rows, the others padding."""

    rows: tuple[int, ...]
    start: int
    end: int

    def rows_index(self, device: torch.device) -> Tensor:
        return torch.tensor(self.rows, device=device)


def spans_of(mask: Tensor) -> list[Span]:
    """The spans of a mask [rows, columns]; rows without tokens are in none.

    They are remembered with the mask, which all layers of a forward pass share. Raises ValueError
    for padding between tokens, and for a mask of another shape.
    """
    known: list[Span] | None = getattr(mask, "_gossamer_spans", None)
    if known is not None:
        return known
    if mask.dim() != 2:
        raise ValueError(f"attention_mask has shape {list(mask.shape)}; must be [rows, tokens]")
    rows: dict[tuple[int, int], list[int]] = {}
    for row, tokens in enumerate(mask.bool().cpu()):
        found = tokens.nonzero().flatten()
        if not len(found):
            continue
        start, end = int(found[0]), int(found[-1]) + 1
        if end - start != len(found):
            raise ValueError(
                f"row {row} of attention_mask has padding between tokens; must be at one end"
            )
        rows.setdefault((start, end), []).append(row)
    spans = [Span(tuple(some), *place) for place, some in rows.items()]
    mask._gossamer_spans = spans  # type: ignore[attr-defined]
    return spans

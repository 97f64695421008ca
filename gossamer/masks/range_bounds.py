"""Minimum and maximum of any range of a sequence, in two look-ups."""

from collections.abc import Callable

import torch
from torch import Tensor


class RangeBounds:
    """Of rows of integers [rows, n]: level l holds the bounds of 2^l values from each place on."""

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


def _doubled(bounds: Tensor, step: int, bound: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Places too near to the end keep what they have: nobody asks them for so much."""
    out = bounds.clone()
    out[:, :-step] = bound(bounds[:, :-step], bounds[:, step:])
    return out

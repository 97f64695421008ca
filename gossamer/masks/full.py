"""Every query sees every key."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.masks.shapes import Diagonal


@dataclass(frozen=True)
class Full(Diagonal):
    """Every query sees every key."""

    @property
    def family(self) -> str:
        return "full"

    def sees(self, distance: Tensor) -> Tensor:
        return distance == distance  # noqa: PLR0124  FlexAttention refuses constants

    def span(self, low: Tensor, high: Tensor) -> Tensor:
        return torch.full_like(low, 2, dtype=torch.int8)

"""Windows of a text, and the positions that they are read at.

RoPE turns keys by their position, the slowest channels by less than a full turn in thousands of
tokens. So windows are placed over all positions that a model has: what it computes does not
change, but its keys do. SmolLM2's, calibrated on positions up to 2,048 only, would lose 0.44 (twice
KL, coded:23.5%) at 6,000 instead of 0.008.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.integrations.transformers import kv_shape
from gossamer.kv.auto import LENGTH


class Window(NamedTuple):
    """Token ids [T], and the position of the first one."""

    ids: Tensor
    start: int

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Of a transformers model."""
        positions = torch.arange(self.start, self.start + len(self.ids), device=self.ids.device)
        return {"input_ids": self.ids[None], "position_ids": positions[None]}


def windows_of(model: Any, token_ids: Sequence[int] | Tensor, context: int) -> list[Window]:
    """Of `context` tokens, the last one of what is left. Raises ValueError for a context that the
    model does not have, and for fewer tokens than the head dimension.
    """
    ids = torch.as_tensor(token_ids, dtype=torch.long).flatten()
    longest = getattr(model.config, "max_position_embeddings", None) or context
    if not 1 <= context <= longest:
        raise ValueError(f"context is {context}; must be 1 to {longest}")
    head_dim = kv_shape(model).head_dim
    if len(ids) < head_dim:
        raise ValueError(f"{len(ids)} tokens; must be at least {head_dim}, the head_dim")
    parts = ids.to(model.device).split(context)
    starts = window_starts(len(parts), context, longest)
    return [Window(*one) for one in zip(parts, starts, strict=True)]


def window_starts(count: int, context: int, longest: int) -> list[int]:
    """Where windows of `context` tokens begin among positions: their ends are a geometric series
    from context to longest.

    Most texts are short, and in a model of many positions each window leaves a gap. Twice the KL
    of coded:23.5% by 5 windows that SmolLM2 wrote, turned as if it had 131,072 positions, from 0
    to 16,000 and at 64,000 and 120,000: 0.019 and 0.028; spaced evenly 0.024 and 0.023; up to
    32,768 only 0.017 and 0.039 (coded:14.5%: 0.17 and 0.70, for 0.22 and 0.46). Of 8,192, it does
    not matter: 0.0153, evenly 0.0153, by squares 0.0159 (coded:14.5%: 0.131, 0.128, 0.128).
    """
    ratio, last = longest / context, max(1, count - 1)
    return [round(context * (ratio ** (i / last) - 1)) for i in range(count)]


def middle(model: Any, tokens: int) -> int:
    """Where a window begins in the middle of a sequence as long as those that bytes are counted
    at, or as the model sees: beside the windows that a calibration had, not on one of them.
    """
    longest = getattr(model.config, "max_position_embeddings", None) or tokens
    return int(max(0, min(longest, LENGTH) - tokens) // 2)

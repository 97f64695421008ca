"""Windows of a text, and the positions that they are read at.

RoPE turns keys by their position, the slowest channels by less than a full turn in thousands of
tokens. So windows are placed over all positions that a model has: what it computes does not
change, but its keys do. SmolLM2's, calibrated on positions up to 2,048 only, would lose 0.44 (twice
KL, coded:23.5%) at 6,000 instead of 0.008. For coded rows, keys of a window count at several
positions: RoPE turns them further without the model.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.integrations.transformers import kv_shape
from gossamer.kv.auto import LENGTH

TURNS = 4  # positions that the keys of a window count at


class Window(NamedTuple):
    """Token ids [T], and the position of the first one.

    shifts: how much further its keys count, see `turned`.
    """

    ids: Tensor
    start: int
    shifts: tuple[int, ...] = (0,)

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
    count = len(parts)
    starts = window_starts(count, context, longest)
    others = window_starts(count * TURNS, context, longest)
    return [
        Window(part, start, tuple(sorted({p - start for p in others[i::count]})))
        for i, (part, start) in enumerate(zip(parts, starts, strict=True))
    ]


def turned(model: Any, rows: Tensor, shifts: Sequence[int]) -> Tensor:
    """Keys [Hk, T, D] after RoPE, or gradients by them, as they would be that many positions later.

    [Hk, shifts, T, D] in float32 or more, by the model's own RoPE, which turns by sums of shifts;
    as they are, [Hk, 1, T, D], where RoPE is not one of whole heads that all layers share.
    """
    rotary: Any = getattr(model.base_model, "rotary_emb", None)
    apply: Any = getattr(sys.modules[type(rotary).__module__], "apply_rotary_pos_emb", None)
    if apply is None or 2 * len(getattr(rotary, "inv_freq", ())) != rows.shape[-1]:
        return rows.unsqueeze(1)
    rows = rows.detach().to(torch.promote_types(rows.dtype, torch.float32)).unsqueeze(2)
    cos, sin = (
        x / rotary.attention_scaling
        for x in rotary(rows, torch.tensor([shifts], device=rows.device))
    )
    found: Tensor = apply(rows, rows, cos, sin)[0]  # [Hk, T, shifts, D]
    return found.transpose(1, 2)


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

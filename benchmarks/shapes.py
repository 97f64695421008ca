"""The sizes that ops are measured at: [batch, tokens, hidden]."""

import torch

from gossamer.ops.checks import FLOAT_DTYPES


def pilot_shapes(device: str, quick: bool) -> list[tuple[int, ...]]:
    """Shapes for a device; one small one for a quick look."""
    if quick:
        return [(4, 128, 1024)]
    if device == "cpu":
        return [(1, 1, 4096), (1, 128, 1024), (4, 128, 4096), (16, 128, 4096)]
    # From a decode step of a few tokens to well past any cache.
    return [(1, 16, 4096), (16, 128, 4096), (16, 1024, 4096), (64, 1024, 4096), (32, 1024, 8192)]


def fused_shapes(device: str, quick: bool) -> list[tuple[int, ...]]:
    """Fewer of them, for the ops that came later."""
    return [shape for shape in pilot_shapes(device, quick) if shape != (64, 1024, 4096)]


def dtypes_of(device: str) -> tuple[torch.dtype, ...]:
    """What models are served in; on a CPU also float32."""
    return FLOAT_DTYPES if device == "cpu" else (torch.float16, torch.bfloat16)

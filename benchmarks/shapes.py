"""The sizes that ops are measured at: [batch, tokens, hidden]."""

import torch

from gossamer.ops.checks import FLOAT_DTYPES

FLOAT16_SHAPES = ((16, 128, 4096), (2048, 28_672), (2048, 40, 128), (32, 128, 1024))
FLOAT32_SHAPES = (*FLOAT16_SHAPES, (32, 1024, 8192), (16_384, 28_672), (16_384, 40, 128))


def pilot_shapes(device: str, quick: bool) -> list[tuple[int, ...]]:
    """Shapes for a device; one small one for a quick look."""
    if quick:
        return [(4, 128, 1024)]
    if device == "cpu":
        return [(1, 1, 4096), (1, 128, 1024), (4, 128, 4096), (16, 128, 4096)]
    # From a decode step of a few tokens to well past any cache.
    return [(1, 16, 4096), (16, 128, 4096), (16, 1024, 4096), (32, 1024, 8192)]


def pilot_dtypes(device: str, shape: tuple[int, ...]) -> tuple[torch.dtype, ...]:
    """On a GPU float32 at some sizes only: models are served in 16 bits."""
    every = device == "cpu" or shape in FLOAT32_SHAPES
    return FLOAT_DTYPES if every else (torch.float16, torch.bfloat16)


def fused_dtypes(device: str, shape: tuple[int, ...]) -> tuple[torch.dtype, ...]:
    """The same for the ops that came later; float16 too at one size."""
    if device == "cpu":
        return FLOAT_DTYPES
    return (torch.float16, torch.bfloat16) if shape in FLOAT16_SHAPES else (torch.bfloat16,)

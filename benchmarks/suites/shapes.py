"""The sizes that ops are measured at: [batch, tokens, hidden], and rows of a KV cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.ops.checks import FLOAT_DTYPES
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

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


@dataclass(frozen=True)
class KVCase:
    """Rows [tokens, heads, head_dim] and how they are stored; values "same": the dtype of the rows
    where that has 16 bits, else fp16."""

    tokens: int
    heads: int
    head_dim: int
    keep: int | None
    values: str = "same"
    scales: str | None = None
    weighted: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.tokens, self.heads, self.head_dim

    @property
    def variant(self) -> str:
        kind = "dense" if self.keep is None else f"keep={self.keep}"
        values = "" if self.values == "same" else f" {self.values}"
        scales = "" if self.scales is None else f"@{self.scales}"
        return f"{kind}{values}{scales}{' weighted' if self.weighted else ''}"

    def format(self, dtype: torch.dtype) -> BlockFormat:
        same = "bf16" if dtype is torch.bfloat16 else "fp16"
        values = same if self.values == "same" else self.values
        return BlockFormat(self.head_dim, self.keep, values, self.scales)

    def rows(self, dtype: torch.dtype, device: str) -> Tensor:
        return torch.randn(self.shape, dtype=dtype, device=device)

    def blocks(self, dtype: torch.dtype, device: str, num_blocks: int = 0) -> Tensor:
        num_blocks = num_blocks or -(-self.tokens // BLOCK_TOKENS)
        shape = (num_blocks, self.heads, self.format(dtype).nbytes)
        return torch.zeros(shape, dtype=torch.uint8, device=device)

    def weights(self, device: str) -> Tensor | None:
        shape = (self.heads, self.head_dim)
        return torch.rand(shape, device=device) + 0.5 if self.weighted else None


def stored_cases(device: str, quick: bool) -> list[KVCase]:
    """Long prompts of a model with 8 KV heads of 128, and other head dimensions."""
    if quick:
        return [
            KVCase(64, 2, 64, 24),
            KVCase(64, 2, 64, 32, "int4", "channel"),
            KVCase(64, 2, 64, None, "int4"),
        ]
    tokens = 65_536 if device == "cuda" else 2_048
    cases = [
        KVCase(tokens, 8, 128, 40),
        KVCase(tokens, 8, 128, 64),
        KVCase(tokens, 8, 128, 40, weighted=True),
        KVCase(tokens, 8, 128, 40, "int8"),
        KVCase(tokens, 8, 128, 40, "int4"),
        KVCase(tokens, 8, 128, 64, "int4", "channel"),
        KVCase(tokens, 8, 128, None),
        KVCase(tokens, 8, 128, None, "int8"),
        KVCase(tokens, 8, 128, None, "int4"),
        KVCase(tokens, 8, 128, None, "int4", "channel"),
        KVCase(tokens, 8, 128, None, "int4", "group"),
        KVCase(tokens, 8, 128, None, "8x8+4x56+3x24+2x32+0x8", "row"),
    ]
    if device == "cuda":
        cases += [KVCase(tokens, 8, d, d // 4 // 8 * 8) for d in (64, 80, 96, 256)]
        cases += [KVCase(2_048, 8, 128, 40)]
    return cases

"""Gossamer: sparse LLM inference with PyTorch."""

from gossamer import masks, ops
from gossamer._version import __version__
from gossamer.attention import masked_attention
from gossamer.profiling import profile

__all__ = ["__version__", "masked_attention", "masks", "ops", "profile"]

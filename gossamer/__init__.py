"""Gossamer: sparse LLM inference with PyTorch."""

from gossamer import ops
from gossamer._version import __version__

__all__ = ["__version__", "ops"]

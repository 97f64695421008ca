"""Gossamer: sparse LLM inference with PyTorch."""

from typing import Any

from gossamer import masks, ops
from gossamer._version import __version__
from gossamer.attention import masked_attention
from gossamer.profiling import profile

__all__ = ["__version__", "masked_attention", "masks", "ops", "optimize", "profile"]


def __getattr__(name: str) -> Any:
    """`optimize` when it is asked for: it imports torch's compiler."""
    if name == "optimize":
        from gossamer.fusion import optimize  # noqa: PLC0415

        return optimize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Attention under sparse masks: one function, whichever kernel is the fastest for the mask."""

from gossamer.attention.masked_attention import masked_attention
from gossamer.attention.prepared import PREPARED, PreparedMask, prepare

__all__ = ["PREPARED", "PreparedMask", "masked_attention", "prepare"]

"""Packed bitmaps of tiles: 32 keys in an int32, bit c of word w is key 32 * w + c."""

import torch
from torch import Tensor

# Of 8 bytes that are 0 or 1, this product brings byte i to bit 56 + i; no two terms meet.
GATHER = 0x0102040810204080


def pack(allowed: Tensor) -> Tensor:
    """bool [..., keys] -> int32 [..., keys / 32]."""
    eights = allowed.contiguous().view(torch.int64)
    return (eights * GATHER >> 56 & 255).to(torch.uint8).view(torch.int32)


def unpack(bits: Tensor) -> Tensor:
    """int32 [..., words] -> bool [..., 32 * words]."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return (bits[..., None] >> shifts & 1).bool().flatten(-2)


def ones(bits: Tensor) -> Tensor:
    """How many bits are set in each int32."""
    x = bits - (bits >> 1 & 0x55555555)
    x = (x & 0x33333333) + (x >> 2 & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return x * 0x01010101 >> 24 & 0xFF


def distinct(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Equal patterns once, [patterns, ...]; and which of them each one is.

    Sorting whole patterns is slow, so that 64-bit sums of them are sorted. Sums that are equal by
    accident are found by comparing; then, and only then, patterns are sorted after all.
    """
    rows = bits.flatten(1)
    generator = torch.Generator().manual_seed(rows.shape[1])
    limits = torch.iinfo(torch.int64)
    weights = torch.randint(
        limits.min, limits.max, (rows.shape[1],), generator=generator, dtype=torch.int64
    ).to(bits.device)
    sums = _weighed(rows, weights)
    keys, which = sums.unique(return_inverse=True)
    chosen = torch.empty_like(keys)
    chosen[which] = torch.arange(len(rows), device=bits.device)
    found = rows[chosen]
    if not _equal(rows, found, which):
        found, which = rows.unique(dim=0, return_inverse=True)
    return found.view(-1, *bits.shape[1:]), which


SLICE = 1 << 22  # words at a time


def _weighed(rows: Tensor, weights: Tensor) -> Tensor:
    step = max(1, SLICE // rows.shape[1])
    parts = [(part * weights).sum(1) for part in rows.split(step)]
    return torch.cat(parts) if parts else rows.new_empty(0, dtype=torch.int64)


def _equal(rows: Tensor, found: Tensor, which: Tensor) -> bool:
    step = max(1, SLICE // rows.shape[1])
    pairs = zip(rows.split(step), which.split(step), strict=True)
    return all(torch.equal(part, found[place]) for part, place in pairs)

"""Bits of a dense row of codes, group by group, and where each of them lies.

A row is cut into groups of 8 channels; group j has 8, 4, 3, 2 or 0 bits per channel. One bit of
all 8 channels is 8 bits, so a group of b bits takes b bytes of the row.

**Fields.** A row is a line of bits for each of the 8 channels of a group ("columns"), all 8 alike.
Groups put fields into it: first the codes of 8 bits, then those of 4, then those of 2 and the lower
two bits of those of 3, last the third bits of those; each kind in the order of the groups. So a
field never crosses a byte. The line is filled up to a multiple of 8 bits.

**Cells.** 16 bits of a column are a cell, 8 cells of 2 bytes are 16 bytes: what a token has of a
*chunk*. Chunks of all 32 tokens are contiguous, [chunk][32 tokens][8 columns][2 bytes]: four 8 x 8
matrices of 16-bit cells, which tensor cores load as they are (tokens down) or transposed (columns
down), and a field taken out of a register with a mask is an operand of a matrix product. If 8 bits
are left over, the last chunk has cells of one byte; two tokens, 8 apart, share a cell of 16 bits:
[2 halves][8 tokens][8 columns][2 tokens], token 16 h + 8 i + t at [h][t][column][i].
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

GROUP_CHANNELS = 8
GROUP_BITS = (8, 4, 3, 2, 0)
TOKENS = 32
CELL_BITS = 16
CHUNK_BYTES = TOKENS * GROUP_CHANNELS * CELL_BITS // 8
# Of a normal distribution: the step, in standard deviations, with the least mean square error of
# 2^b levels (Max, 1960). Rows of groups of different bits are weighed with it for their scale.
BEST_STEP = {8: 0.0308, 4: 0.3352, 3: 0.5860, 2: 0.9957}


class Field(NamedTuple):
    """Bits [shift, shift + width) of the codes of a group, at `at` of its columns' lines."""

    group: int
    at: int
    width: int
    shift: int


@dataclass(frozen=True)
class Profile:
    """bits: of each group of 8 channels."""

    bits: tuple[int, ...]

    @cached_property
    def line_bits(self) -> int:
        """Bits of a column; also bytes of a row: a multiple of 8."""
        return -(-sum(self.bits) // 8) * 8

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        found, at = [], 0
        for width, of, shift in ((8, (8,), 0), (4, (4,), 0), (2, (2, 3), 0), (1, (3,), 2)):
            for group, bits in enumerate(self.bits):
                if bits in of:
                    found.append(Field(group, at, width, shift))
                    at += width
        return tuple(found)

    @cached_property
    def addresses(self) -> Tensor:
        """Bytes of a row, in the order of the line: int64 [32 tokens, line_bits / 8, 8 columns]."""
        token = torch.arange(TOKENS)[:, None, None]
        byte = torch.arange(self.line_bits // 8)[None, :, None]
        column = torch.arange(GROUP_CHANNELS)
        whole = byte // 2 * CHUNK_BYTES + token * 16 + column * 2 + byte % 2
        half = byte // 2 * CHUNK_BYTES + token // 16 * 128 + token % 8 * 16 + column * 2
        half = half + token // 8 % 2
        odd = self.line_bits % CELL_BITS != 0
        return torch.where((byte == self.line_bits // 8 - 1) & odd, half, whole)

    def to_rows(self, codes: Tensor) -> Tensor:
        """Codes [..., D], not negative -> bytes [..., line_bits / 8, 8]."""
        groups = codes.unflatten(-1, (-1, GROUP_CHANNELS))
        rows = codes.new_zeros((*codes.shape[:-1], self.line_bits // 8, GROUP_CHANNELS))
        for group, at, width, shift in self.fields:
            rows[..., at // 8, :] |= (groups[..., group, :] >> shift & 2**width - 1) << at % 8
        return rows.to(torch.uint8)

    def to_codes(self, rows: Tensor) -> Tensor:
        """The way back; 0 where a group has no bits."""
        lines = rows.long()
        groups = lines.new_zeros((*rows.shape[:-2], len(self.bits), GROUP_CHANNELS))
        for group, at, width, shift in self.fields:
            groups[..., group, :] |= (lines[..., at // 8, :] >> at % 8 & 2**width - 1) << shift
        return groups.flatten(-2)

    def by_channel(self, of_bits: dict[int, float], device: torch.device) -> Tensor:
        """A number for each channel by its group's bits, float32 [D]."""
        numbers = torch.tensor([of_bits.get(b, 0.0) for b in self.bits], device=device)
        return numbers.repeat_interleave(GROUP_CHANNELS)

    def __str__(self) -> str:
        """`8x16+4x40+2x8`: bits and channels of each run of groups."""
        runs: list[list[int]] = []
        for bits in self.bits:
            if runs and runs[-1][0] == bits:
                runs[-1][1] += GROUP_CHANNELS
            else:
                runs.append([bits, GROUP_CHANNELS])
        return "+".join(f"{bits}x{channels}" for bits, channels in runs)


def is_profile(values: str) -> bool:
    """Whether this names a profile rather than a type."""
    return "x" in values


@lru_cache(maxsize=256)
def parse_profile(text: str) -> Profile:
    """The profile that `str` made this of. Raises ValueError: what is wrong, and what is valid."""
    bits: list[int] = []
    for run in text.split("+"):
        match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})", run)
        if match is None:
            raise ValueError(
                f"bits are {text!r}; must be like 8x16+4x40+2x8: bits x channels, and so on"
            )
        width, channels = int(match[1]), int(match[2])
        if width not in GROUP_BITS:
            raise ValueError(f"{run!r} has {width} bits; must be 8, 4, 3, 2 or 0")
        if channels == 0 or channels % GROUP_CHANNELS:
            raise ValueError(
                f"{run!r} has {channels} channels; must be a multiple of {GROUP_CHANNELS}"
            )
        bits += [width] * (channels // GROUP_CHANNELS)
    if not any(bits):
        raise ValueError(f"bits are {text!r}; must be more than 0 somewhere")
    return Profile(tuple(bits))

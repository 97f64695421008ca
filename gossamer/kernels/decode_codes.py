"""Dense rows of codes (gossamer/ops/kv_profile.py) for Triton: words that say where channels lie.

    0   bits 0-12 address for token 0, 13 cells of one byte, 14-16 shift, 17-20 width, 21-29 twice
        what is subtracted from the code
    1   of the third bit of codes of 3 bits: bits 0-16 as above; 17 is set where there is one

What programs are compiled for is bytes of a row, and whether there are third bits: many profiles
share one.
"""

from functools import lru_cache

import torch
from torch import Tensor

UNIFORM = {"fp8_e4m3": 8, "int8": 8, "int4": 4, "int3": 3, "int2": 2}
GROUP = 8  # channels


def has_codes(keep: int | None, values: str) -> bool:
    return keep is None and (values in UNIFORM or "x" in values)


def group_bits(values: str, head_dim: int) -> list[int]:
    """Bits of each 8 channels."""
    if values in UNIFORM:
        return [UNIFORM[values]] * (head_dim // GROUP)
    runs = (run.split("x") for run in values.split("+"))
    return [int(bits) for bits, channels in runs for _ in range(int(channels) // GROUP)]


def row_bytes(values: str, head_dim: int) -> int:
    return -(-sum(group_bits(values, head_dim)) // 8) * 8


def compiled_values(values: str, head_dim: int) -> str:
    """What a program has to know of a format of codes, as its VALUES."""
    kind = "fp8" if values == "fp8_e4m3" else "codes"
    third = "+third" if 3 in group_bits(values, head_dim) else ""
    return f"{kind}:{row_bytes(values, head_dim)}{third}"


def is_coded(values: str) -> bool:
    """Of what `compiled_values` gave, or the name of a type."""
    return ":" in values


@lru_cache(maxsize=256)
def code_words(values: str, scales: str, head_dim: int, device: torch.device) -> Tensor:
    """int32 [2, head_dim]."""
    bits, total = group_bits(values, head_dim), row_bytes(values, head_dim)
    words = torch.zeros(2, head_dim, dtype=torch.int32)
    at = 0
    for width, of, line in ((8, (8,), 0), (4, (4,), 0), (2, (2, 3), 0), (1, (3,), 1)):
        for group, width_of in enumerate(bits):
            if width_of not in of:
                continue
            place = _places(at, total)
            if line == 0:
                place = place + (width << 17) + (_twice_center(values, scales, width_of) << 21)
            else:
                place = place + (1 << 17)
            words[line, group * GROUP : (group + 1) * GROUP] = place
            at += width
    return words.to(device)


def _places(at: int, total: int) -> Tensor:
    """Address, kind of cell and shift of a field of 8 columns, from bit `at` of their lines on."""
    byte = at // 8
    single = total % 16 != 0 and byte == total // 8 - 1
    address = byte // 2 * 512 + 2 * torch.arange(GROUP) + (0 if single else byte % 2)
    return address + (int(single) << 13) + (at % 8 << 14)


def _twice_center(values: str, scales: str, bits: int) -> int:
    if values not in UNIFORM:
        return (1 << bits) - 1
    return 1 << bits if scales == "row" and values != "fp8_e4m3" else 0

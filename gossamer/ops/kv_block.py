"""How 32 tokens of one KV head lie in memory: the one format of every cache, on every device.

A block is, in this order:

    bitmap   [32 tokens][head_dim / 8 bytes]       sparse only; bit c of a row is channel c
    values   [stored / 8 chunks][32 tokens][8]     8 values of b bits are b bytes, little-endian
    scales   row:     [32 tokens] float16          value = code * scale
             channel: [head_dim][2] float16        value = code * scale + minimum
             group:   [head_dim / 32][32 tokens][2] float16, the same for 32 channels of a token

A dense row stores all its entries; a sparse one exactly `keep` of them in channel order, padded
with zeros to a multiple of 8. Every row of a format has the same size, so a token's slot can be
written alone and found without an offset, and a chunk of all 32 tokens is contiguous: a GPU lane
that owns a token reads its 8 values next to its neighbours' (row-major values took 1.54x as long).
"""

from dataclasses import dataclass

import torch

from gossamer.ops.checks import one_of

BLOCK_TOKENS = 32
CHUNK = 8  # values
GROUP = 32  # channels that share a scale in scales="group"
MAX_HEAD_DIM = 256

VALUE_BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8_e4m3": 8,
    "int8": 8,
    "int4": 4,
    "int3": 3,
    "int2": 2,
}


def valid_scales(values: str, dense: bool) -> tuple[str, ...]:
    """The ways in which values of this type can be scaled; the first is the default."""
    if VALUE_BITS[values] >= 16:
        return ("none",)
    if values == "fp8_e4m3":
        return ("row",)
    return ("row", "channel", "group") if dense else ("row", "channel")


@dataclass(frozen=True)
class BlockFormat:
    """The format of the blocks of K or of V.

    head_dim: a multiple of 8 from 8 to 256. keep: entries stored per row, 1 to head_dim; None for
    all of them (dense). values: the type of an entry. scales: None for the default of `values`.
    Raises ValueError for anything else, TypeError for what is no integer.
    """

    head_dim: int
    keep: int | None = None
    values: str = "fp16"
    scales: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("head_dim", self.head_dim), ("keep", self.keep)):
            optional = name == "keep" and value is None
            number = isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
            if not (number or optional):
                raise TypeError(f"{name} is {value!r}; must be an integer")
        if self.head_dim % CHUNK or not CHUNK <= self.head_dim <= MAX_HEAD_DIM:
            raise ValueError(
                f"head_dim is {self.head_dim}; must be a multiple of {CHUNK} from {CHUNK} "
                f"to {MAX_HEAD_DIM}"
            )
        if self.keep is not None and not 1 <= self.keep <= self.head_dim:
            raise ValueError(f"keep is {self.keep}; must be 1 to {self.head_dim}, the head_dim")
        one_of("values", self.values, VALUE_BITS)
        valid = valid_scales(self.values, self.keep is None)
        if self.scales is None:
            object.__setattr__(self, "scales", valid[0])
        if self.scales not in valid:
            kind = "dense" if self.keep is None else "sparse"
            raise ValueError(
                f"scales is {self.scales!r}; must be {' or '.join(map(repr, valid))} "
                f"for {kind} {self.values}"
            )
        if self.scales == "group" and self.head_dim % GROUP:
            raise ValueError(
                f"head_dim is {self.head_dim}; must be a multiple of {GROUP} for scales 'group'"
            )

    @property
    def bits(self) -> int:
        """Bits of a value; also bytes of a chunk of 8 values."""
        return VALUE_BITS[self.values]

    @property
    def stored(self) -> int:
        """Values stored per row: all of them, or `keep` rounded up to a multiple of 8."""
        return self.head_dim if self.keep is None else -(-self.keep // CHUNK) * CHUNK

    @property
    def chunks(self) -> int:
        return self.stored // CHUNK

    @property
    def bitmap_bytes(self) -> int:
        return 0 if self.keep is None else BLOCK_TOKENS * self.head_dim // 8

    @property
    def value_bytes(self) -> int:
        return self.chunks * BLOCK_TOKENS * self.bits

    @property
    def scale_bytes(self) -> int:
        if self.scales == "row":
            return 2 * BLOCK_TOKENS
        if self.scales == "channel":
            return 4 * self.head_dim
        return 4 * BLOCK_TOKENS * self.head_dim // GROUP if self.scales == "group" else 0

    @property
    def nbytes(self) -> int:
        """Bytes of a block of 32 tokens; always a multiple of 16."""
        return self.bitmap_bytes + self.value_bytes + self.scale_bytes

    @property
    def whole_blocks(self) -> bool:
        """Whether a block must be written at once, because its tokens share scales."""
        return self.scales == "channel"

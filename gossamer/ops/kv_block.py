"""How 32 tokens of one KV head lie in memory: the one format of every cache, on every device.

A block is, in this order:

    bitmap   [32 tokens][head_dim / 8 bytes]       sparse only; bit c of a row is channel c
    values   codes of dense rows: see kv_profile
             others: [stored / 8 chunks][32 tokens][8]; 8 values of b bits are b bytes,
             little-endian
    scales   row:     [32 tokens] float16          value = code * scale
             channel: [2][head_dim] float16        scales, then minima: code * scale + minimum
             group:   [head_dim / 32][2][32 tokens] float16, the same for 32 channels of a token

A dense row stores all its entries; a sparse one exactly `keep` of them in channel order, padded
with zeros to a multiple of 8. Every row of a format has the same size, so a token's slot can be
written alone and found without an offset, and a chunk of all 32 tokens is contiguous: a GPU lane
that owns a token reads its 8 values next to its neighbours' (row-major values took 1.54x as long).

Codes of dense rows are stored from 0 on. What they mean: with a scale per row, code - 2^(b-1) times
the scale (fp8: the number itself, times the scale); with a minimum, code * scale + minimum; in a
profile ("8x16+4x40+2x8"), code - (2^b - 1) / 2, times the scale if there is one: steps of its
channels are 1, and whoever calibrated the cache has divided by them.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from gossamer.ops.checks import one_of
from gossamer.ops.kv_profile import Profile, is_profile, parse_profile

# Of blocks. 1, of 0.1: codes of dense rows as those of sparse ones, scale next to minimum.
FORMAT_VERSION = 2
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
    if is_profile(values):
        return ("none", "row")
    if VALUE_BITS[values] >= 16:
        return ("none",)
    if values == "fp8_e4m3":
        return ("row",)
    return ("row", "channel", "group") if dense else ("row", "channel")


def has_codes(keep: int | None, values: str) -> bool:
    """Whether these are dense rows of codes, which lie as kv_profile says."""
    return keep is None and (is_profile(values) or VALUE_BITS[values] <= 8)


@lru_cache
def uniform_profile(bits: int, head_dim: int) -> Profile:
    """All channels alike."""
    return Profile((bits,) * (head_dim // CHUNK))


@dataclass(frozen=True)
class BlockFormat:
    """The format of the blocks of K or of V.

    head_dim: a multiple of 8 from 8 to 256. keep: entries stored per row, 1 to head_dim; None for
    all of them (dense). values: the type of an entry, or a profile of bits (dense only). scales:
    None for the default of `values`. Raises ValueError for anything else, TypeError for what is no
    integer.
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
        self._check_values()
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

    def _check_values(self) -> None:
        if not is_profile(self.values):
            return one_of("values", self.values, VALUE_BITS)
        channels = CHUNK * len(parse_profile(self.values).bits)
        if self.keep is not None:
            raise ValueError(f"values is {self.values!r}; must be one type where rows are sparse")
        if channels != self.head_dim:
            raise ValueError(
                f"values is {self.values!r}, which is {channels} channels; "
                f"must add up to {self.head_dim}, the head_dim"
            )
        return None

    @property
    def coded(self) -> bool:
        """Whether steps are those of a calibration, and bits may differ."""
        return is_profile(self.values)

    @property
    def profile(self) -> Profile | None:
        """Of dense rows of codes; None for others."""
        if self.coded:
            return parse_profile(self.values)
        if self.keep is not None or self.bits > 8:
            return None
        return uniform_profile(self.bits, self.head_dim)

    @property
    def bits(self) -> int:
        """Bits of a value; also bytes of a chunk of 8 values. Of a profile: the most."""
        return max(parse_profile(self.values).bits) if self.coded else VALUE_BITS[self.values]

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
        if (profile := self.profile) is not None:
            return BLOCK_TOKENS * profile.line_bits
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

"""How K and V are stored: dense, sparse or coded, in which type, and what that takes in bytes."""

import re
from dataclasses import dataclass

import torch

from gossamer.kv.policies import POLICIES
from gossamer.ops.checks import one_of
from gossamer.ops.kv_block import CHUNK, VALUE_BITS, BlockFormat, valid_scales
from gossamer.ops.kv_profile import parse_profile

BASES = ("none", "pca")
GRAMMAR = "dense[:type[@scales]], sparse:keep[:type[@scales]], coded:25% or coded:8x8+4x56[@row]"
ALIASES = {"fp8": "fp8_e4m3"}
# What models compute in, by the names of layouts.
PLAIN = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Dense:
    """All entries. dtype: fp32, fp16, bf16, fp8_e4m3, int8, int4, int3 or int2.

    scales: "row" (one per token), "channel" (with a minimum, over the 32 tokens of a block; KIVI's
    choice for K) or "group" (with a minimum, over 32 channels of a token; KIVI's for V); None for
    the default of the dtype. Raises ValueError for anything else.
    """

    dtype: str = "fp16"
    scales: str | None = None

    def __post_init__(self) -> None:
        _normalise(self, "dtype", dense=True)

    def format(self, head_dim: int) -> BlockFormat:
        """Raises ValueError for a head_dim that blocks cannot have."""
        return BlockFormat(head_dim, None, self.dtype, self.scales)

    def __str__(self) -> str:
        return f"dense:{_typed(self.dtype, self.scales, dense=True)}"


@dataclass(frozen=True)
class Sparse:
    """Exactly `keep` entries per row and a bitmap that says which.

    keep: an integer from 1 to head_dim, or the fraction that is pruned, from 0.0 to below 1.0,
    which keeps the nearest multiple of 8. values, scales: as in Dense, without "group".
    """

    keep: int | float
    values: str = "fp16"
    scales: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keep, bool) or not isinstance(self.keep, int | float):
            raise TypeError(f"keep is {type(self.keep).__name__}; must be an int or a float")
        if isinstance(self.keep, float) and not 0.0 <= self.keep < 1.0:
            raise ValueError(
                f"keep is {self.keep}; must be a fraction pruned from 0.0 to below 1.0"
            )
        if isinstance(self.keep, int) and self.keep < 1:
            raise ValueError(f"keep is {self.keep}; must be 1 to the head_dim")
        _normalise(self, "values", dense=False)

    def kept(self, width: int) -> int:
        """Entries kept of `width`, a multiple of 8. Raises ValueError for more, and for none."""
        kept = self.keep
        if isinstance(kept, float):
            kept = round((1 - kept) * width / CHUNK) * CHUNK
            if kept == 0:
                most = 1 - CHUNK / width
                raise ValueError(
                    f"keep is {self.keep}, which leaves nothing of {width}; must be at most {most}"
                )
        if kept > width:
            raise ValueError(f"keep is {self.keep}; must be 1 to {width}")
        return kept

    def format(self, head_dim: int) -> BlockFormat:
        """Raises ValueError for a keep above head_dim, or a head_dim that blocks cannot have."""
        return BlockFormat(head_dim, self.kept(head_dim), self.values, self.scales)

    def __str__(self) -> str:
        return f"sparse:{self.keep}:{_typed(self.values, self.scales, dense=False)}"


LEAST_PERCENT, MOST_PERCENT = 10, 52  # 1.6 bits a channel, and 8 with a scale per row


@dataclass(frozen=True)
class Coded:
    """Codes in a calibrated basis, its channels sorted by what they are worth, in groups of 8.

    bits: `8x8+4x40+2x16`, that is bits (8, 4, 3, 2 or 0) x channels, and so on; or a float: the
    percentage of float16's bytes that a row may take. A calibration picks the bits then
    (KVConfig.resolve); until that has happened, there is no format.
    scales: "none", or "row" (a float16 per token). None is "none", and "row" with a percentage.
    """

    bits: str | float
    scales: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.bits, str):
            object.__setattr__(self, "bits", str(parse_profile(self.bits)))
        elif isinstance(self.bits, bool) or not isinstance(self.bits, int | float):
            raise TypeError(f"bits is {type(self.bits).__name__}; must be a str or a float")
        elif not LEAST_PERCENT <= self.bits <= MOST_PERCENT:
            raise ValueError(
                f"bits are {_number(self.bits)}% of float16's; must be {LEAST_PERCENT}% to "
                f"{MOST_PERCENT}%"
            )
        object.__setattr__(self, "scales", self.scales or self._default_scales)
        one_of("scales of coded rows", self.scales, valid_scales("8x8", dense=True))

    @property
    def _default_scales(self) -> str:
        return "none" if self.resolved else "row"

    @property
    def resolved(self) -> bool:
        """Whether the bits are known."""
        return isinstance(self.bits, str)

    def format(self, head_dim: int) -> BlockFormat:
        """Raises ValueError for bits of another head_dim, and for a percentage."""
        if not isinstance(self.bits, str):
            raise ValueError(
                f"bits are {_number(self.bits)}%, of which a calibration makes bits by channel; "
                "resolve the config with one first (KVConfig.resolve), or name them: coded:8x8+4x56"
            )
        return BlockFormat(head_dim, None, self.bits, self.scales)

    def __str__(self) -> str:
        bits = self.bits if isinstance(self.bits, str) else f"{_number(self.bits)}%"
        return f"coded:{bits}" + ("" if self.scales == self._default_scales else f"@{self.scales}")


Layout = Dense | Sparse | Coded


@dataclass(frozen=True)
class Side:
    """K or V: its layout, the basis it is stored in, and the policy that chooses what is kept."""

    layout: Layout
    basis: str = "none"
    policy: str = "magnitude"

    def __post_init__(self) -> None:
        if not isinstance(self.layout, Dense | Sparse | Coded):
            raise TypeError(f"layout is {self.layout!r}; must be Dense, Sparse or Coded")
        one_of("basis", self.basis, BASES)
        one_of("policy", self.policy, POLICIES)
        if isinstance(self.layout, Coded) and self.basis != "none":
            raise ValueError(
                f"basis is {self.basis!r}; must be left out for coded rows, which have their own"
            )
        if not isinstance(self.layout, Sparse) and self.policy != "magnitude":
            raise ValueError(f"policy is {self.policy!r}; must be left out where nothing is pruned")

    def format(self, head_dim: int) -> BlockFormat:
        """The format of a block of 32 tokens of one KV head."""
        return self.layout.format(head_dim)

    def block_bytes(self, head_dim: int) -> int:
        """Stored bytes of 32 tokens of one KV head."""
        return self.format(head_dim).nbytes

    def sparsity(self, head_dim: int) -> float:
        """The share of entries that is really left out."""
        fmt = self.format(head_dim)
        return 0.0 if fmt.keep is None else 1 - fmt.keep / fmt.head_dim


def parse_layout(text: str, dense: str = "fp16", sparse: str = "fp16") -> Layout:
    """See GRAMMAR; dense and sparse are the types where it names none. Raises ValueError."""
    kind, *words = text.split(":")
    one_of("layout", kind, ("dense", "sparse", "coded"))
    if len(words) > (2 if kind == "sparse" else 1) or (kind != "dense" and not words):
        raise ValueError(f"layout is {text!r}; must be {GRAMMAR}")
    if kind == "coded":
        return parse_coded(words[0])
    if kind == "dense":
        return Dense(*parse_type(words[0] if words else dense))
    return Sparse(parse_keep(words[0]), *parse_type(words[1] if len(words) > 1 else sparse))


def parse_coded(text: str) -> Coded:
    """`25%`, `20.5%@row` or `8x8+4x40+2x16@row`. Raises ValueError."""
    bits, scales = parse_type(text)
    if not bits.endswith("%"):
        return Coded(bits, scales)
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,20})?%", bits):
        raise ValueError(f"bits are {bits!r}; must be a percentage like 25%, or like 8x8+4x56")
    return Coded(float(bits[:-1]), scales)


def parse_keep(text: str) -> int | float:
    """`40` keeps 40 entries, `0.7` leaves out 70%. Raises ValueError."""
    if re.fullmatch("[0-9]+", text):
        return int(text)
    if re.fullmatch(r"[0-9]*\.[0-9]+(e-[0-9]+)?|[0-9]+e-[0-9]+", text):
        return float(text)
    raise ValueError(f"keep is {text!r}; must be a number of entries or a fraction pruned")


def parse_type(text: str) -> tuple[str, str | None]:
    """`int4@channel` -> ("int4", "channel"), `int4` -> ("int4", None)."""
    values, at, scales = text.partition("@")
    if at and not scales:
        raise ValueError(f"type is {text!r}; must have scales after the @")
    return ALIASES.get(values, values), scales or None


def _number(percent: float) -> str:
    return repr(float(percent)).removesuffix(".0")


def _typed(values: str, scales: str | None, dense: bool) -> str:
    return values if scales == valid_scales(values, dense)[0] else f"{values}@{scales}"


def _normalise(layout: Layout, field: str, dense: bool) -> None:
    """Check the type and its scales, and put the default for missing scales."""
    values = getattr(layout, field)
    values = ALIASES.get(values, values)
    one_of(field, values, VALUE_BITS)
    valid = valid_scales(values, dense)
    if layout.scales is not None:
        one_of(f"scales of {values}", layout.scales, valid)
    object.__setattr__(layout, field, values)
    object.__setattr__(layout, "scales", layout.scales or valid[0])

"""Which group of channels gets how many bits: the least error that a number of bytes can buy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from gossamer.kv.layouts import Coded
from gossamer.ops.kv_profile import GROUP_BITS, GROUP_CHANNELS, Profile

LINE_BYTES = 8  # rows of codes are filled up to that
SCALE_BYTES = 2

# Bits of K and V by eighths of a row, with a scale per row, that have GPU kernels of their own at
# these head dimensions (csrc/attention/decode/codes_launch.cuh): other bits decode half as fast.
KERNEL_HEAD_DIMS = (64, 128, 256)
KERNEL_PAIRS = (
    ("88888888", "88888888"),
    ("44444444", "44444444"),
    ("84444422", "44333322"),
    ("84422220", "44333322"),
    ("43322200", "42222220"),
)

# Errors by bits (as GROUP_BITS) and group of channels, for rows without a scale and with one.
Errors = dict[str, Sequence[Sequence[float]]]
Best = tuple[float, tuple[int, ...]]  # an error, and the bits of the groups that have it


@dataclass(frozen=True)
class Choice:
    """Bits of the groups of a row, what it takes in bytes, and its error."""

    bits: tuple[int, ...]
    scales: str
    nbytes: int
    error: float

    @property
    def layout(self) -> Coded:
        return Coded(str(Profile(self.bits)), self.scales)


def pick_bits(errors: Errors, nbytes: float) -> Choice:
    """The best row of at most so many bytes. Raises ValueError where none has room for a code."""
    found = choices(errors, nbytes)
    if not found:
        raise ValueError(_no_room(nbytes, errors))
    return min(found, key=lambda choice: (choice.error, choice.nbytes))


def pick_both(k: Errors, v: Errors, nbytes: float) -> tuple[Choice, Choice]:
    """The best rows of K and V of at most so many bytes together; errors are in the same unit."""
    pairs = product(choices(k, nbytes), choices(v, nbytes))
    fitting = [pair for pair in pairs if pair[0].nbytes + pair[1].nbytes <= nbytes]
    if not fitting:
        raise ValueError(_no_room(nbytes, k, v))
    return min(fitting, key=lambda pair: (pair[0].error + pair[1].error, pair[0].nbytes))


def pick_kernel_pair(k: Errors, v: Errors, nbytes: float) -> tuple[Choice, Choice] | None:
    """The best of KERNEL_PAIRS of at most so many bytes; None where none is."""
    groups = len(next(iter(k.values()))[0])
    if groups * GROUP_CHANNELS not in KERNEL_HEAD_DIMS or "row" not in k or "row" not in v:
        return None
    pairs = [(_by_eighths(k, a), _by_eighths(v, b)) for a, b in KERNEL_PAIRS]
    fitting = [pair for pair in pairs if pair[0].nbytes + pair[1].nbytes <= nbytes]
    return min(fitting, key=lambda pair: pair[0].error + pair[1].error, default=None)


def kernel_pairs(head_dim: int) -> tuple[tuple[Coded, Coded], ...]:
    """KERNEL_PAIRS as layouts of K and V; none where the head dimension has no such kernels."""
    if head_dim not in KERNEL_HEAD_DIMS:
        return ()
    return tuple(by_eighths(pair, head_dim) for pair in KERNEL_PAIRS)


def by_eighths(pair: tuple[str, str], head_dim: int) -> tuple[Coded, Coded]:
    """Bits of K and V by eighths of a row as layouts, with a scale per row.

    Raises ValueError for rows that have no eighths of whole groups.
    """
    groups = head_dim // GROUP_CHANNELS
    if groups % 8 or head_dim % GROUP_CHANNELS:
        raise ValueError(f"head_dim is {head_dim}; must be a multiple of {8 * GROUP_CHANNELS}")
    k, v = (Coded(str(Profile(_widened(side, groups))), "row") for side in pair)
    return k, v


def _widened(eighths: str, groups: int) -> tuple[int, ...]:
    return tuple(int(b) for b in eighths for _ in range(groups // len(eighths)))


def _by_eighths(errors: Errors, eighths: str) -> Choice:
    table = errors["row"]
    bits = _widened(eighths, len(table[0]))
    error = sum(table[GROUP_BITS.index(b)][group] for group, b in enumerate(bits))
    return Choice(bits, "row", Profile(bits).line_bits + SCALE_BYTES, error)


def choices(errors: Errors, nbytes: float) -> list[Choice]:
    """The best row for each scaling and each length up to `nbytes`."""
    found = []
    for scales, table in errors.items():
        extra = SCALE_BYTES if scales == "row" else 0
        for length, (error, bits) in _best_by_length(table, int(nbytes) - extra).items():
            found.append(Choice(bits, scales, length + extra, error))
    return found


def _no_room(nbytes: float, *sides: Errors) -> str:
    least = sum(LINE_BYTES + (0 if "none" in errors else SCALE_BYTES) for errors in sides)
    return f"{nbytes:g} bytes have no room for codes; must be at least {least}"


def _best_by_length(table: Sequence[Sequence[float]], most: int) -> dict[int, Best]:
    """Least error and its bits for rows of 8, 16, ... bytes; never more bits than the group before.

    Groups one after another; of all ways to spend so many bytes on those so far that end with so
    many bits, only the best can be part of the best.
    """
    best: dict[tuple[int, int], Best] = {(0, GROUP_BITS[0]): (0.0, ())}  # by bytes and last bits
    for group in range(len(table[0])):
        longer: dict[tuple[int, int], Best] = {}
        for (used, last), (error, bits) in best.items():
            for level, width in enumerate(GROUP_BITS):
                key = (used + width, width)
                if width > last or key[0] > most:
                    continue
                candidate = (error + table[level][group], (*bits, width))
                if candidate[0] < longer.get(key, (math.inf, ()))[0]:
                    longer[key] = candidate
        best = longer
    found: dict[int, Best] = {}
    for length in range(LINE_BYTES, most + 1, LINE_BYTES):
        fitting = [entry for (used, _), entry in best.items() if 0 < used <= length]
        if fitting:
            found[length] = min(fitting)
    return found

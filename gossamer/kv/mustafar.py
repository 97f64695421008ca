"""The KV-cache format and the pruning rule of Mustafar, to compare Gossamer's own against.

Mustafar: arXiv 2505.22913, github.com/dhjoo98/mustafar (read at commit a8fad80). Its cache holds
tiles of 64 entries. K and V have the same shape, [tokens, D], and are tiled differently:

- key: a tile is 64 consecutive tokens of one channel. Tiles are stored by block of 64 tokens, then
  by channel.
- value: a tile is 64 consecutive channels of one token. Tiles are stored by block of 64 tokens,
  then by block of 64 channels, then by token, so tokens and D must both be multiples of 64.

A tile has a 64-bit bitmap of its nonzero entries, the first entry in the most significant bit, and
those entries in order, padded with zeros to a multiple of 8 (16 bytes, one load of the GPU). An
offset per tile says where its entries begin; each sequence counts from 0 and ends with its total,
so it has one offset more than tiles. Sequences follow each other without a gap.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.ops.checks import check_has_last_dim, check_tensor, dtype_name

Side = Literal["key", "value"]

TILE = 64
PAD = 8  # entries of a tile are padded to a multiple of this
UNIT = 2  # float16 entries in one unit of an offset: 4 bytes


@dataclass(frozen=True, eq=False)
class MustafarTensor:
    """K or V in Mustafar's format, tile by tile in the order of `side` (see the module).

    bitmaps: int64 [..., tiles]. offsets: int32 [..., tiles + 1], in units of 4 bytes, from the
    first value of the same sequence. values: float16, flat, padded. shape: [..., tokens, D], that
    of the dense tensor; a sequence is one index of its leading dimensions.
    """

    bitmaps: Tensor
    values: Tensor
    offsets: Tensor
    shape: tuple[int, ...]
    side: Side

    @property
    def nbytes(self) -> int:
        """Bytes of bitmaps, values and offsets.

        Mustafar's kernels also read where each sequence starts, an int32 per sequence; it follows
        from the offsets and is not counted.
        """
        return self.bitmaps.nbytes + self.values.nbytes + self.offsets.nbytes

    @property
    def ratio(self) -> float:
        """Bytes relative to the dense float16 tensor."""
        return self.nbytes / (math.prod(self.shape) * torch.float16.itemsize)


def prune(x: Tensor, sparsity: float, *, exact: bool = False) -> Tensor:
    """x with the entries of smallest magnitude in its last dimension, D, set to zero.

    exact=False is Mustafar's rule: the threshold is the k-th smallest magnitude, k = int(sparsity *
    D), and whatever reaches it stays. That is one entry more than D - k, and all ties with it; NaN
    stays. exact=True drops k entries, NaN counting as the largest; of equal magnitudes the lower
    index stays. Both drop nothing where k is 0.
    x: [..., D], float32, float16 or bfloat16. sparsity: from 0 to below 1.
    Returns a new tensor. Raises TypeError (dtype) or ValueError (sparsity, no dimensions).
    """
    check_tensor("prune", "x", x)
    check_has_last_dim("prune", "x", x)
    if not isinstance(sparsity, (int, float)):
        raise TypeError(f"prune: sparsity is {type(sparsity).__name__}; must be a float")
    if not 0 <= sparsity < 1:
        raise ValueError(f"prune: sparsity is {sparsity}; must be >= 0 and < 1")
    width = x.shape[-1]
    dropped = int(sparsity * width)
    if dropped == 0:
        return x.clone()
    size = x.abs()
    if exact:
        order = size.argsort(dim=-1, descending=True, stable=True)
        keep = torch.zeros_like(x, dtype=torch.bool)
        keep.scatter_(-1, order[..., : width - dropped], True)
    else:
        threshold = size.kthvalue(dropped, dim=-1, keepdim=True).values
        # Mustafar multiplies by its mask, so a NaN survives whatever the mask says.
        keep = (size >= threshold) | x.isnan()
    return torch.where(keep, x, torch.zeros_like(x))


def compress_key(x: Tensor) -> MustafarTensor:
    """K in Mustafar's format. An entry is stored where it is != 0: NaN is, -0.0 is not.

    x: float16 [..., tokens, D], tokens a positive multiple of 64 (Mustafar itself compresses 256
    at a time). Raises TypeError (dtype) or ValueError (shape).
    """
    return _compress("compress_key", x, "key")


def compress_value(x: Tensor) -> MustafarTensor:
    """V in Mustafar's format. An entry is stored where it is != 0: NaN is, -0.0 is not.

    x: float16 [..., tokens, D], tokens and D positive multiples of 64 (Mustafar itself compresses
    256 tokens at a time). Raises TypeError (dtype) or ValueError (shape).
    """
    return _compress("compress_value", x, "value")


def decompress(compressed: MustafarTensor) -> Tensor:
    """The dense float16 tensor, bit for bit, but for -0.0, which comes back as +0.0.

    Raises ValueError where bitmaps, offsets and values contradict each other.
    """
    shape, split = compressed.shape, _split(compressed.shape, compressed.side)
    want, got = math.prod(shape) // TILE, compressed.bitmaps.numel()
    if got != want:
        raise ValueError(f"decompress: bitmaps has {got} tiles; must have {want}, as shape says")
    bitmaps = compressed.bitmaps.reshape(split[0], -1, 1)
    stored = (bitmaps >> _shifts(bitmaps.device)) & 1 == 1
    offsets = _offsets(stored)
    if not torch.equal(offsets.flatten(), compressed.offsets.flatten()):
        raise ValueError("decompress: offsets differ; must be the running sums of the bitmaps")
    want, got = _total(offsets), compressed.values.numel()
    if got != want:
        raise ValueError(f"decompress: values has {got} entries; must have {want}, as offsets say")
    tiles = compressed.values.new_zeros(stored.shape)
    tiles[stored] = compressed.values[_slots(stored, offsets)]
    batch, blocks, tokens, columns, *rest = split
    return tiles.view(batch, blocks, columns, tokens, *rest).transpose(2, 3).reshape(shape)


def _compress(function: str, x: Tensor, side: Side) -> MustafarTensor:
    _check(function, x, side)
    split = _split(tuple(x.shape), side)
    tiles = x.reshape(split).transpose(2, 3).reshape(split[0], -1, TILE)
    stored = tiles != 0
    # Bit 63 is the sign of an int64; the sum of distinct bits never carries into it.
    bitmaps = (stored.long() << _shifts(x.device)).sum(dim=-1)
    offsets = _offsets(stored)
    values = x.new_zeros(_total(offsets))
    values[_slots(stored, offsets)] = tiles[stored]
    bitmaps, offsets = (t.view(*x.shape[:-2], -1) for t in (bitmaps, offsets))
    return MustafarTensor(bitmaps, values, offsets, tuple(x.shape), side)


def _check(function: str, x: Tensor, side: Side) -> None:
    check_tensor(function, "x", x)
    if x.dtype is not torch.float16:
        raise TypeError(f"{function}: x has dtype {dtype_name(x.dtype)}; must be float16")
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(
            f"{function}: x has shape {list(x.shape)}; must be [..., tokens, D] and not empty"
        )
    # A tile of V runs along D, but tiles are stored by block of 64 tokens on both sides.
    aligned = {"tokens": x.shape[-2]} | ({"D": x.shape[-1]} if side == "value" else {})
    for name, size in aligned.items():
        if size % TILE != 0:
            raise ValueError(
                f"{function}: x has shape {list(x.shape)}, {name} is {size}; "
                f"must be a multiple of {TILE}"
            )


def _split(shape: tuple[int, ...], side: Side) -> tuple[int, ...]:
    """The dense shape as [sequences, blocks, 64, columns] for K, [..., columns, 64] for V.

    Exchanging dimensions 2 and 3 then puts the tiles in the order of storage on both sides.
    """
    *lead, tokens, width = shape
    columns = (width,) if side == "key" else (width // TILE, TILE)
    return (math.prod(lead), tokens // TILE, TILE, *columns)


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(TILE - 1, -1, -1, device=device)


def _offsets(stored: Tensor) -> Tensor:
    """[sequences, tiles, 64] to [sequences, tiles + 1]: exclusive sums of the padded counts."""
    padded = (stored.sum(dim=-1) + PAD - 1) // PAD * PAD
    return F.pad(padded.cumsum(dim=-1) // UNIT, (1, 0)).int()


def _total(offsets: Tensor) -> int:
    return int(offsets[:, -1].sum()) * UNIT


def _slots(stored: Tensor, offsets: Tensor) -> Tensor:
    """Where each stored entry lies in values, in the order of boolean indexing."""
    totals = offsets[:, -1:].long()
    starts = (totals.cumsum(dim=0) - totals + offsets[:, :-1]) * UNIT
    return (starts.unsqueeze(-1) + stored.cumsum(dim=-1) - 1)[stored]

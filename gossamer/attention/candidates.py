"""Which ways can take a call: kernels here and now, by the limits that they state themselves."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.attention.coefficient_files import places_of
from gossamer.attention.prepared import PreparedMask, Tile
from gossamer.attention.ways import Call, Way
from gossamer.ops import OPS
from gossamer.ops.backends import PREFERENCE, chosen
from gossamer.ops.masked_attention import CUDA_TILES

# The first of each is for calls of which nothing is known.
TILES: dict[str, tuple[Tile, ...]] = {
    "cuda": ((64, 64), *(tile for tile in CUDA_TILES if tile != (64, 64))),
    "triton": ((64, 64), (128, 64)),
    "cpu": ((64, 64), (32, 32)),
    "reference": ((64, 64),),
}
MOST_BOXES = 1 << 24  # of a map that is built only to look at it
LEAST_KEYS = (128, 256, 512)  # of a piece of a row
MOST_LIST_KEYS = 1 << 26  # of the row kernel's lists
DENSEST_LISTS = 0.1
MOST_DENSE = 1 << 20  # entries of a mask that SDPA gets as a tensor; longer ones never pay


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a call, checked."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    scale: float
    softcap: float
    return_lse: bool

    @property
    def call(self) -> Call:
        return Call.of(self.q, self.k)

    @property
    def plain(self) -> bool:
        """Whether scores are products times a positive number."""
        return self.bias is None and self.softcap == 0 and self.scale > 0


def candidates(mask: PreparedMask, args: Arguments, backend: str | None = None) -> list[Way]:
    """All of them. With a backend by name, or `use_backend`, only kernels of that backend.

    Raises BackendUnavailableError where that is not to be had.
    """
    device = mask.device.type
    wanted = (backend,) if backend is not None else chosen()
    ways: list[Way] = []
    for name in wanted or PREFERENCE.get(device, ("reference",)):
        ways += _of_backend(mask, args, name, device)
        if ways and (wanted or name == "cpu"):  # beside C++, others are for tests
            break
        if name == "triton" and ways:
            break
    if not ways:
        unsuited = OPS["masked_attention"].unsuited(device, _op_arguments(args, CUDA_TILES[0]))
        OPS["masked_attention"].select(device, backend, unsuited)  # raises, and says why
    return ways if wanted else ways + _sdpa(mask, args)


def _of_backend(mask: PreparedMask, args: Arguments, backend: str, device: str) -> list[Way]:
    """Block kernels with their tiles, and the row kernel."""
    block, rows = OPS["masked_attention"], OPS["masked_attention_rows"]
    ways = []
    if backend in TILES and block.why_not(backend, device) is None:
        for tile in _affordable(mask, TILES[backend]):
            if backend == "cuda" and block.unsuited(device, _op_arguments(args, tile)):
                continue
            limits = _limits(mask, args, tile) if backend == "cuda" else [0]
            ways += [Way("block", backend, tile, limit) for limit in limits]
    listed = backend in ("triton", "cpu") and rows.why_not(backend, device) is None
    if listed and mask.facts((64, 64)).density <= DENSEST_LISTS:
        entries = mask.q_len * mask.kv_len * mask.facts((64, 64)).density
        if entries * (mask.mask.batch or 1) * (mask.mask.heads or 1) <= MOST_LIST_KEYS:
            ways.append(Way("rows", backend))
    return ways


def _op_arguments(args: Arguments, tile: Tile) -> tuple[Any, ...]:
    """Those of the op, as far as its limits look at them."""
    bits = torch.empty(1, tile[0], tile[1] // 32, dtype=torch.int32, device="meta")
    lists = (None, None, bits, None, None)
    return args.q, args.k, args.v, *lists, args.bias, args.scale, args.softcap, args.return_lse


def _affordable(mask: PreparedMask, tiles: tuple[Tile, ...]) -> list[Tile]:
    """Small tiles of long masks take long to count."""

    def boxes(tile: Tile) -> int:
        return -(-mask.q_len // tile[0]) * -(-mask.kv_len // tile[1])

    fewest = min(tiles, key=boxes)
    return [tile for tile in tiles if tile == fewest or boxes(tile) <= MOST_BOXES]


def _limits(mask: PreparedMask, args: Arguments, tile: Tile) -> list[int]:
    """Whole rows, and pieces of several lengths where these cut anything."""
    facts = mask.facts(tile)
    replicas = facts.replicas(args.q.shape[0], args.q.shape[1])
    sms = places_of(mask.device)
    longest = int(facts.rows.max(initial=0))
    limits = [facts.piece_limit(replicas, sms, least) for least in LEAST_KEYS]
    return [0, *dict.fromkeys(limit for limit in limits if limit < longest)]


def _sdpa(mask: PreparedMask, args: Arguments) -> list[Way]:
    """torch's own, where the mask is nothing to it, or small."""
    if not args.plain:
        return []
    if mask.shape() == "other":
        return [Way("sdpa", "mask")] if _fits_dense(mask, args) else []
    if mask.device.type != "cuda":
        return [] if args.return_lse else [Way("sdpa", "torch")]
    params = torch.backends.cuda.SDPAParams(
        args.q, args.k, args.v, None, 0.0, mask.shape() == "causal", grouped(args)
    )
    ways = []
    if torch.backends.cuda.can_use_flash_attention(params):
        ways.append(Way("sdpa", "flash"))
    # Its lse has another shape in each version of torch.
    if not args.return_lse and torch.backends.cuda.can_use_cudnn_attention(params):
        ways.append(Way("sdpa", "cudnn"))
    return ways


def grouped(args: Arguments) -> bool:
    """Whether query heads share KV heads."""
    return args.q.shape[1] != args.k.shape[1]


def _fits_dense(mask: PreparedMask, args: Arguments) -> bool:
    """Few entries, and no query that sees nothing: SDPA makes NaN of those."""
    count = (mask.mask.batch or 1) * (mask.mask.heads or 1) * mask.q_len * mask.kv_len
    if args.return_lse or count > MOST_DENSE or grouped(args):
        return False
    return bool(mask.dense().any(-1).all())

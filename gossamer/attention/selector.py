"""Which kernel a call gets: of the candidates that take it, the one that looks cheapest.

Kernels take part here and now, by the limits that they state themselves.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch

from gossamer.attention.candidates import Arguments, Candidate
from gossamer.attention.coefficient_files import Coefficients, coefficients_of, places_of
from gossamer.attention.plans import Plan, empty_plan, plan_of
from gossamer.attention.prepared import PreparedMask, Tile
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
PLAIN_PAIRS = 1 << 20  # queries times keys
MOST_FAMILIES = 4096  # kinds of calls that are remembered
MOST_BOXES = 1 << 24  # of a map that is built only to look at it
LEAST_KEYS = (128, 256, 512)  # of a piece of a row
MOST_LIST_KEYS = 1 << 26  # of the row kernel's lists
DENSEST_LISTS = 0.1
MOST_DENSE = 1 << 20  # entries of a mask that SDPA gets as a tensor; longer ones never pay


# What calls of a family of masks get (see Mask.family), by kind of call and coefficients.
_families: dict[Any, tuple[Candidate, Coefficients]] = {}


def plan(mask: PreparedMask, args: Arguments, backend: str | None) -> Plan:
    """The plan of calls like this one. Builds maps, and may wait for the device."""
    if args.q.numel() == 0 or mask.kv_len == 0:
        return empty_plan(args)
    if mask.device.type == "cpu":
        return _plan(mask, args, backend)
    # Maps are small, so threads only get in each other's way: the first prompt of 700 tokens took
    # 102 ms with 16 on an H200's host, and 67 with one (one process each).
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _plan(mask, args, backend)
    finally:
        torch.set_num_threads(threads)


def _plan(mask: PreparedMask, args: Arguments, backend: str | None) -> Plan:
    known = coefficients_of(mask.device)
    kind = _kind(mask, args, backend, known)
    if kind in _families:
        return plan_of(mask, _families[kind][0], args)
    for candidate in _promising(mask, args, backend, known):
        found = plan_of(mask, candidate, args)
        if candidate.kernel != "sdpa" or _runs(found, args):
            # Tiles take any mask; SDPA one that is plain, or in which every query sees something.
            if kind is not None and (candidate.kernel == "block" or mask.plain):
                if len(_families) >= MOST_FAMILIES:
                    _families.clear()
                _families[kind] = candidate, known
            return found
    raise RuntimeError("masked_attention: no kernel takes this call")  # one of ours always does


def _kind(
    mask: PreparedMask, args: Arguments, backend: str | None, known: Coefficients
) -> Hashable:
    """Calls of one kind get the same kernel: lengths count by their power of two."""
    if mask.mask.family is None:
        return None
    lengths = (mask.q_len.bit_length(), mask.kv_len.bit_length(), mask.q_len == mask.kv_len)
    sizes = (*args.q.shape[:2], args.k.shape[1], args.q.shape[3], args.q.dtype)
    rest = (args.bias is None, args.softcap == 0, args.return_lse, args.plain)
    return mask.mask.family, mask.device, lengths, sizes, rest, backend, chosen(), id(known)


def _promising(
    mask: PreparedMask, args: Arguments, backend: str | None, known: Coefficients
) -> Iterator[Candidate]:
    """Candidates in the order to try. Large full and causal calls on a GPU are torch's own: of the
    40 such points of an H200's results ours is faster at one, by 2%, and tiles need no counting."""
    large = mask.plain is not None and mask.q_len * mask.kv_len >= PLAIN_PAIRS
    if large and mask.device.type == "cuda" and backend is None and not chosen():
        yield from reversed(_sdpa(mask, args))  # cuDNN's before flash
    yield from ranked(mask, args, candidates(mask, args, backend), known)


def ranked(
    mask: PreparedMask,
    args: Arguments,
    among: Iterable[Candidate],
    coefficients: Coefficients | None = None,
) -> list[Candidate]:
    """Cheapest first; those of which nothing is known behind, in the order given."""
    known = coefficients or coefficients_of(mask.device)
    return sorted(among, key=lambda candidate: _cost(mask, args, candidate, known))


def _cost(mask: PreparedMask, args: Arguments, candidate: Candidate, known: Coefficients) -> float:
    if not known.known and (candidate.kernel == "rows" or candidate.backend == "mask"):
        return float("inf")  # a gamble on a device that nobody measured
    facts = mask.facts(candidate.facts_tile)
    return known.model.rank(candidate, args.call, facts)


def _runs(found: Plan, args: Arguments) -> bool:
    """Whether torch's kernel is there: builds and versions differ in what they refuse, and when."""
    try:
        out, _ = found.run(args.q, args.k, args.v, None, args.scale, 0.0)
    except (RuntimeError, NotImplementedError):
        return False
    return out.shape == args.q.shape


def candidates(mask: PreparedMask, args: Arguments, backend: str | None = None) -> list[Candidate]:
    """All of them. With a backend by name, or `use_backend`, only kernels of that backend.

    Raises BackendUnavailableError where that is not to be had.
    """
    device = mask.device.type
    wanted = (backend,) if backend is not None else chosen()
    found: list[Candidate] = []
    for name in wanted or PREFERENCE.get(device, ("reference",)):
        found += _of_backend(mask, args, name, device)
        if found and (wanted or name == "cpu"):  # next to C++, others are for tests
            break
        if name == "triton" and found:
            break
    if not found:
        unsuited = OPS["masked_attention"].unsuited(device, _op_arguments(args, CUDA_TILES[0]))
        OPS["masked_attention"].select(device, backend, unsuited)  # raises, and says why
    return found if wanted else found + _sdpa(mask, args)


def _of_backend(mask: PreparedMask, args: Arguments, backend: str, device: str) -> list[Candidate]:
    """Block kernels with their tiles, and the row kernel."""
    block, rows = OPS["masked_attention"], OPS["masked_attention_rows"]
    found = []
    if backend in TILES and block.why_not(backend, device) is None:
        for tile in _affordable(mask, TILES[backend]):
            if backend == "cuda" and block.unsuited(device, _op_arguments(args, tile)):
                continue
            limits = _limits(mask, args, tile) if backend == "cuda" else [0]
            found += [Candidate("block", backend, tile, limit) for limit in limits]
    listed = backend in ("triton", "cpu") and rows.why_not(backend, device) is None
    if listed and mask.facts((64, 64)).density <= DENSEST_LISTS:
        entries = mask.q_len * mask.kv_len * mask.facts((64, 64)).density
        if entries * (mask.mask.batch or 1) * (mask.mask.heads or 1) <= MOST_LIST_KEYS:
            found.append(Candidate("rows", backend))
    return found


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


def _sdpa(mask: PreparedMask, args: Arguments) -> list[Candidate]:
    """torch's own, where the mask is nothing to it, or small."""
    if not args.plain:
        return []
    if mask.shape() == "other":
        return [Candidate("sdpa", "mask")] if _fits_dense(mask, args) else []
    if mask.device.type != "cuda":
        return [] if args.return_lse else [Candidate("sdpa", "torch")]
    params = torch.backends.cuda.SDPAParams(
        args.q, args.k, args.v, None, 0.0, mask.shape() == "causal", args.grouped
    )
    found = []
    if torch.backends.cuda.can_use_flash_attention(params):
        found.append(Candidate("sdpa", "flash"))
    # Its lse has another shape in each version of torch.
    if not args.return_lse and torch.backends.cuda.can_use_cudnn_attention(params):
        found.append(Candidate("sdpa", "cudnn"))
    return found


def _fits_dense(mask: PreparedMask, args: Arguments) -> bool:
    """Few entries, and no query that sees nothing: SDPA makes NaN of those."""
    count = (mask.mask.batch or 1) * (mask.mask.heads or 1) * mask.q_len * mask.kv_len
    if args.return_lse or count > MOST_DENSE or args.grouped:
        return False
    return bool(mask.dense().any(-1).all())

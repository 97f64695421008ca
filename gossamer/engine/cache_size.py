"""How many pages a cache has in its memory."""

from dataclasses import dataclass

from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.layouts import Side

DENSE_SHARE = 4  # windows take at most 1/4 of the memory
PREFIX_SHARE = 16  # and blocks that are kept dense for later prompts 1/16
REACH = 64 << 30  # bytes of K, or of V, that kernels address


@dataclass(frozen=True)
class CacheSize:
    """Pages of both pools and the bytes of one of each, all layers together."""

    stored_pages: int
    dense_pages: int
    stored_bytes: int
    dense_bytes: int


def cache_size(spec: CacheSpec, memory: int, max_num_seqs: int, prefixes: bool) -> CacheSize:
    """How `memory` bytes are split. Raises ValueError when not even one block fits.

    prefixes: whether some dense pages are for prompts that share a beginning.
    """
    rule, stored_bytes, dense_bytes = spec.rule, spec.stored_bytes, spec.dense_bytes
    dense = 0
    if not rule.plain:
        # Chunks need a window more while they last; few are computed at once.
        wanted = max_num_seqs * rule.dense_pages + rule.window
        dense = min(wanted, memory // DENSE_SHARE // dense_bytes)
        dense += memory // PREFIX_SHARE // dense_bytes if prefixes else 0
        dense = max(dense, rule.most_dense_pages)
    dense = min(dense, _reached(spec, spec.dense))
    stored = (memory - dense * dense_bytes) // stored_bytes
    stored = min(stored, *(_reached(spec, side) for side in (spec.config.k, spec.config.v)))
    if stored < 1:
        least = rule.most_dense_pages * dense_bytes + stored_bytes
        raise ValueError(f"kv_memory is {memory} bytes; must be at least {least} for {spec.config}")
    return CacheSize(stored, dense, stored_bytes, dense_bytes)


def _reached(spec: CacheSpec, side: Side) -> int:
    """Pages of a pool that kernels address."""
    return REACH // (
        spec.shape.layers * spec.shape.kv_heads * side.block_bytes(spec.shape.head_dim)
    )

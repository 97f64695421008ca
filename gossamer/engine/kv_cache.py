"""The memory of the KV cache: pools of pages for all layers, and how big they can be."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.engine.block_manager import CacheRule
from gossamer.kv import KVConfig, KVShape
from gossamer.kv.layouts import PLAIN, Dense, Side
from gossamer.kv.policies import CALIBRATED
from gossamer.ops import kv_pack, kv_unpack
from gossamer.ops.kv_block import BLOCK_TOKENS, BlockFormat

POLICIES = ("magnitude", *CALIBRATED)
DENSE_SHARE = 4  # windows take at most one part in so many of the memory
PREFIX_SHARE = 16  # and blocks that are kept dense for later prompts one part in so many


@dataclass(frozen=True)
class CacheSize:
    """Pages of both pools and the bytes of one of each, all layers together."""

    stored_pages: int
    dense_pages: int
    stored_bytes: int
    dense_bytes: int


def parse_kv(spec: str | KVConfig, dtype: torch.dtype) -> KVConfig:
    """The cache that a spec names; a plain "dense" is in the type of the model.

    Raises ValueError for specs that are wrong and for policies that the engine does not have.
    """
    config = spec
    if isinstance(config, str):
        plain = PLAIN[dtype]
        config = KVConfig.parse(config, dense=plain, sparse="bf16" if plain == "bf16" else "fp16")
    for name, side in (("k", config.k), ("v", config.v)):
        if side.policy not in POLICIES:
            raise ValueError(
                f"{name}_policy is {side.policy!r}; the engine has {' and '.join(POLICIES)}"
            )
    return config


def rule_of(config: KVConfig, dtype: torch.dtype) -> CacheRule:
    """In blocks what the config says in tokens."""
    layout = Dense(PLAIN[dtype])
    return CacheRule(
        window=config.window // BLOCK_TOKENS,
        sink=config.sink // BLOCK_TOKENS,
        plain=config.k.layout == config.v.layout == layout,
        whole_prompts=config.prefill == "dense",
    )


def plan_size(
    config: KVConfig,
    shape: KVShape,
    dtype: torch.dtype,
    memory: int,
    max_num_seqs: int,
    prefixes: bool,
) -> CacheSize:
    """How `memory` bytes are split. Raises ValueError when not even one block fits."""
    rule = rule_of(config, dtype)
    stored_bytes = config.block_bytes(shape)
    side = Side(Dense(PLAIN[dtype]))
    dense_bytes = KVConfig(side, side).block_bytes(shape)
    dense = 0
    if not rule.plain:
        # Chunks need a window more while they last; few are computed at once.
        wanted = max_num_seqs * rule.dense_pages + rule.window
        dense = min(wanted, memory // DENSE_SHARE // dense_bytes)
        dense += memory // PREFIX_SHARE // dense_bytes if prefixes else 0
        dense = max(dense, rule.most_dense_pages)
    stored = (memory - dense * dense_bytes) // stored_bytes
    if stored < 1:
        least = rule.most_dense_pages * dense_bytes + stored_bytes
        raise ValueError(f"kv_memory is {memory} bytes; must be at least {least} for {config}")
    return CacheSize(stored, dense, stored_bytes, dense_bytes)


class KVCache:
    """Pools [pages, layers, heads, bytes] of K and V: stored blocks, and dense ones of windows.

    All layers of a page are neighbours, so that one call compresses a block in all of them. A plain
    cache has no dense pool. k_basis: [layers, heads, D, D] in which K is stored, k_weights:
    [layers, heads, D] that rank its entries; None for none.
    """

    def __init__(
        self,
        config: KVConfig,
        shape: KVShape,
        dtype: torch.dtype,
        device: torch.device,
        size: CacheSize,
        k_basis: Tensor | None = None,
        k_weights: Tensor | None = None,
    ) -> None:
        self.config, self.shape, self.dtype, self.size = config, shape, dtype, size
        self.rule = rule_of(config, dtype)
        self.k_fmt, self.v_fmt = (s.format(shape.head_dim) for s in (config.k, config.v))
        self.dense_fmt = BlockFormat(shape.head_dim, None, PLAIN[dtype])
        self.k_basis = None if k_basis is None else k_basis.to(device, dtype)
        self.k_weights = None if k_weights is None else k_weights.to(device, torch.float32)

        def pool(pages: int, fmt: BlockFormat) -> Tensor:
            sizes = (pages, shape.layers, shape.kv_heads, fmt.nbytes)
            return torch.zeros(sizes, dtype=torch.uint8, device=device)

        self.k, self.v = pool(size.stored_pages, self.k_fmt), pool(size.stored_pages, self.v_fmt)
        self.dense_k = pool(size.dense_pages, self.dense_fmt)
        self.dense_v = pool(size.dense_pages, self.dense_fmt)

    def compress(self, dense_pages: Tensor, stored_pages: Tensor) -> None:
        """Dense blocks into stored ones, all layers at once; both int64 [N] page numbers."""
        offsets = torch.arange(BLOCK_TOKENS, device=self.k.device)
        sources = (dense_pages[:, None] * BLOCK_TOKENS + offsets).flatten()
        targets = (stored_pages[:, None] * BLOCK_TOKENS + offsets).flatten()
        weights = None if self.k_weights is None else self.k_weights.flatten(0, 1)
        for source, target, fmt, by in (
            (self.dense_k, self.k, self.k_fmt, weights),
            (self.dense_v, self.v, self.v_fmt, None),
        ):
            rows = kv_unpack(source.flatten(1, 2), sources, self.dense_fmt, self.dtype)
            kv_pack(rows, target.flatten(1, 2), targets, fmt, weights=by)

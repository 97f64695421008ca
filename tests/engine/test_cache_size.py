"""How many pages a cache has in its memory."""

import pytest
import torch

from gossamer.engine.cache_size import REACH, cache_size
from gossamer.kv import KVConfig, KVShape
from gossamer.kv.cache_spec import CacheSpec

SHAPE = KVShape(layers=30, query_heads=9, kv_heads=3, head_dim=64)


def spec_of(kv):
    config = KVConfig.of(kv, torch.float16)
    return CacheSpec(config, SHAPE, torch.float16, torch.device("cpu"))


@pytest.mark.parametrize("kv", ["dense", "dense:int8", "sparse:k=32,v=16"])
@pytest.mark.parametrize("memory", [1 << 28, 40 << 30, 1000 << 30])
def test_pages_fit_the_memory_and_what_kernels_address(kv, memory):
    spec = spec_of(kv)
    size = cache_size(spec, memory, max_num_seqs=64, prefixes=True)
    taken = size.stored_pages * size.stored_bytes + size.dense_pages * size.dense_bytes
    assert taken <= memory
    sides = [(size.stored_pages, side) for side in (spec.config.k, spec.config.v)]
    pools = [pages * 90 * side.block_bytes(64) for pages, side in sides]
    pools.append(size.dense_pages * size.dense_bytes // 2)
    assert max(pools) <= REACH
    if memory < REACH:  # most of it is used
        assert taken > 0.7 * memory

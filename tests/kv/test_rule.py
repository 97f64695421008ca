"""The rule of positions as a mask: what a chunk sees is what each of its queries sees by itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.kv import KVConfig, Side, Sparse
from gossamer.kv.rule import CacheRule
from gossamer.masks import Causal, Strided, TileMap
from gossamer.masks.presets import PRESETS

SPARSE = Side(Sparse(8))
TILES = ((32, 32), (64, 64), (128, 64), (64, 32))


def config_of(window: int, sink: int) -> KVConfig:
    return KVConfig(SPARSE, SPARSE, 32 * window, 32 * sink)


def keys_of(mask) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the keys of a chunk in the order of its mask, and which are as stored."""
    positions = [*mask.far, *(key for part in mask.past for key in part)]
    positions += range(mask.start, mask.end)
    stored = torch.arange(len(positions)) < len(mask.far)
    return torch.tensor(positions), stored


@settings(deadline=None)
@given(
    window=st.integers(0, 4),
    sink=st.integers(0, 3),
    start=st.integers(0, 400),
    count=st.integers(1, 300),
    sliding=st.sampled_from([0, 1, 40, 200]),
    tile=st.sampled_from(TILES),
)
def test_a_chunk_sees_every_key_once_as_the_rule_says(window, sink, start, count, sliding, tile):
    config = config_of(window, sink)
    mask = CacheRule.of(config, torch.float32).chunk(start, start + count)
    key, stored = keys_of(mask)
    assert mask.lengths == (count, len(key))
    query = torch.arange(start, start + count)[:, None]
    dense = config.sees_dense(query, key)
    expected = (key <= query) & (dense != stored)
    if sliding:
        expected &= key > query - sliding
    seen = mask.sliding(sliding).dense(*mask.lengths)[0, 0]
    assert torch.equal(seen, expected)
    # Every position up to the query's own, within the sliding window, exactly once.
    assert torch.equal(seen.sum(1), query[:, 0].add(1).clamp(max=sliding or 1 << 40))
    tiles = TileMap.build(mask.sliding(sliding), *mask.lengths, tile)
    assert torch.equal(tiles.dense()[0, 0], expected)


@settings(deadline=None)
@given(
    window=st.integers(0, 4),
    sink=st.integers(0, 3),
    plain=st.booleans(),
    pages=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    likely=st.booleans(),
)
def test_the_longest_prefix_is_the_longest_of_which_all_is_there(
    window, sink, plain, pages, likely
):
    rule = CacheRule(window, sink, plain)
    there = [[known or (likely and at % 5 > 0) for known in p] for at, p in enumerate(pages)]
    stored, dense = ([pair[side] for pair in there] for side in (0, 1))

    def complete(blocks):
        far = rule.seen_stored(blocks)
        return all(stored[b] if b in far else dense[b] for b in range(blocks))

    longest = max(blocks for blocks in range(len(pages) + 1) if complete(blocks))
    assert rule.longest_prefix(stored, dense) == longest


@pytest.mark.parametrize(("window", "sink"), [(0, 0), (1, 0), (2, 1), (0, 3), (3, 2)])
@pytest.mark.parametrize("blocks", [1, 2, 3, 9])
def test_a_prefix_is_what_the_tokens_after_it_see(window, sink, blocks):
    config = config_of(window, sink)
    rule, query = CacheRule.of(config, torch.float32), torch.tensor(32 * blocks)
    dense = [bool(config.sees_dense(query, torch.tensor(32 * b))) for b in range(blocks)]
    assert [b not in rule.seen_stored(blocks) for b in range(blocks)] == dense


@pytest.mark.parametrize("start", [0, 32, 70])
def test_a_plain_cache_is_causal(start):
    rule = CacheRule.of(KVConfig.of("dense", torch.bfloat16), torch.bfloat16)
    mask = rule.chunk(start, start + 50)
    assert rule.plain
    assert (len(mask.far), mask.past) == (0, (range(0), range(start)))
    assert mask.sliding(0) == mask.sliding(start + 50) == Causal(start)
    assert mask.sliding(start + 49) != Causal(start)


def test_a_prompt_mask_holds_for_the_prompt_alone():
    rule = CacheRule(window=1, sink=0, plain=False, prompt_mask=Strided(8))
    assert not rule.shares_prefixes
    mask = rule.chunk(0, 200, prompt=150)
    key, _ = keys_of(mask)
    plain = CacheRule(window=1, sink=0, plain=False).chunk(0, 200).dense(*mask.lengths)[0, 0]
    allowed = Strided(8).dense(200, 200)[0, 0][:, key]
    allowed[150:] = True
    assert torch.equal(mask.dense(*mask.lengths)[0, 0], plain & allowed)


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize(("window", "sink"), [(0, 0), (1, 1), (2, 3)])
def test_every_mask_can_be_that_of_a_prompt(name, window, sink):
    """Tiles are where the predicate is, also in boxes that lie in two parts of the keys."""
    within = PRESETS[name](320)
    rule = CacheRule(window, sink, plain=False, prompt_mask=within)
    for start, end in ((0, 320), (64, 320), (170, 300)):
        mask = rule.chunk(start, end, prompt=320)
        key, stored = keys_of(mask)
        query = torch.arange(start, end)[:, None]
        seen = (key <= query) & (config_of(window, sink).sees_dense(query, key) != stored)
        seen = seen & within.dense(320, 320)[0][:, start:end][:, :, key]
        tiles = TileMap.build(mask, *mask.lengths, (64, 64))
        assert torch.equal(tiles.dense()[0], seen.expand_as(tiles.dense()[0]))


def test_pages_of_a_sequence():
    assert CacheRule(2, 1, False).dense_pages == 4
    assert CacheRule(2, 1, False).most_dense_pages == 6
    assert CacheRule(2, 1, True).most_dense_pages == 0
    assert [CacheRule(1, 0, False).compressed_before(p) for p in (0, 63, 64, 96)] == [0, 0, 1, 2]

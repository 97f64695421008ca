"""What is kept of a mask, for how long, and lists of keys."""

import gc
import weakref

import pytest
import torch

from gossamer import masked_attention
from gossamer import masks as m
from gossamer.attention import prepare, prepared
from gossamer.attention.prepared import PreparedMasks
from tests.attention.oracle import check, inputs, oracle
from tests.masks.examples import all_masks

CPU = torch.device("cpu")


def test_equal_masks_share_an_entry():
    cache = PreparedMasks()
    first = cache.get(m.Sliding(3, 4), 10, 10, CPU)
    assert cache.get(m.Sliding(3, 4), 10, 10, CPU) is first
    others = [(m.Sliding(3, 5), 10, 10), (m.Sliding(3, 4), 11, 10), (m.Sliding(3, 4), 10, 11)]
    assert all(cache.get(*other, CPU) is not first for other in others)
    assert len(cache) == 4


def test_masks_of_tensors_are_equal_only_to_themselves():
    cache = PreparedMasks()
    table = torch.ones(10, 10, dtype=torch.bool)
    one, two = m.DenseMask(table), m.DenseMask(table)
    assert cache.get(one, 10, 10, CPU) is cache.get(one, 10, 10, CPU)
    assert cache.get(one, 10, 10, CPU) is not cache.get(two, 10, 10, CPU)


def test_the_cache_is_bounded():
    cache = PreparedMasks(size=3)
    for window in range(10):
        cache.get(m.Sliding(window, 0), 10, 10, CPU)
        cache.get(m.Causal(), 10, 10, CPU)  # always among the last ones used
    assert len(cache) == 3
    kept = cache.get(m.Causal(), 10, 10, CPU)
    assert cache.get(m.Causal(), 10, 10, CPU) is kept
    cache.clear()
    assert len(cache) == 0


def test_forgotten_masks_are_freed():
    cache = PreparedMasks(size=1)
    mask = m.DenseMask(torch.ones(10, 10, dtype=torch.bool))
    alive = weakref.ref(mask.allowed)
    cache.get(mask, 10, 10, CPU)
    del mask
    cache.get(m.Causal(), 10, 10, CPU)
    gc.collect()
    assert alive() is None


def test_a_dense_mask_that_was_written_to():
    table = torch.rand(40, 40) < 0.5
    mask = m.DenseMask(table) & m.Full()
    q, k, v = inputs(1, 2, 2, 40, 40, 64)
    masked_attention(q, k, v, mask)
    table.fill_(True)
    table[:, 20:] = False
    check(masked_attention(q, k, v, mask), oracle(q, k, v, table), torch.float32)


def test_a_dense_mask_of_inference_mode():
    with torch.inference_mode():
        mask = m.DenseMask(torch.ones(8, 8, dtype=torch.bool))
        q, k, v = inputs(1, 2, 2, 8, 8, 64)
        masked_attention(q, k, v, mask)
        masked_attention(q, k, v, mask)


def test_only_maps_in_use_are_kept():
    mask = prepare(m.Sliding.causal(100), 1000, 1000, "cpu")
    assert mask.nbytes == 0
    masked_attention(*inputs(1, 2, 2, 1000, 1000, 64), mask)
    (plan,) = mask.plans.values()
    assert mask.nbytes == mask.tiles(plan.candidate.tile).nbytes
    assert "Sliding" in repr(mask)


def test_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(prepared, "MOST_PLANS", 8)
    mask = prepare(m.Causal(), 4, 4, "cpu")
    for batch in range(1, 20):
        masked_attention(*inputs(batch, 1, 1, 4, 4, 32), mask)
        assert 1 <= len(mask.plans) <= 8


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (m.Full(), "full"),
        (m.Sliding(100, 100), "full"),
        (m.Documents([70]), "full"),
        (m.Causal(69), "full"),
        (m.Causal(), "causal"),
        (m.Documents([70]) & m.Causal(), "causal"),
        (m.PrefixLM(0), "causal"),
        (m.DenseMask(torch.ones(70, 70, dtype=torch.bool).tril()), "causal"),
        (m.DenseMask(torch.ones(70, 70, dtype=torch.bool).triu()), "other"),  # equally dense
        (m.PrefixLM(2), "other"),
        (m.Causal(1), "other"),
        (m.Causal(-1), "other"),
    ],
    ids=str,
)
def test_masks_that_are_none_or_causal_are_seen_as_such(mask, shape):
    assert prepare(mask, 70, 70, "cpu").shape() == shape


def test_causal_of_other_lengths_is_not_what_sdpa_calls_causal():
    assert prepare(m.Causal(), 70, 90, "cpu").shape() == "other"
    assert prepare(m.Causal(20), 70, 90, "cpu").shape() == "other"


def test_same_mask():
    masks = [*all_masks(130).values(), m.PrefixLM(0), m.Sliding(10, 3) & m.Full()]
    maps = [(one := m.TileMap.build(mask, 130, 130), one.dense()) for mask in masks]
    same = 0
    for one, dense in maps:
        for other, other_dense in maps:
            assert one.same_mask(other) == torch.equal(dense, other_dense)
            same += one is not other and one.same_mask(other)
    assert same >= 4


@pytest.mark.parametrize(("q_len", "kv_len"), [(130, 130), (1, 70), (70, 33)])
def test_key_lists(q_len, kv_len):
    masks = [m.Sliding(9, 2), m.Full(), m.Causal(-50), m.Strided(7) & ~m.Causal(-20)]
    masks.append(m.per_head([m.Causal(), m.Full() & ~m.Full(), m.Dilated(8, 8, 3)]))
    for mask in masks:
        offsets, keys = m.TileMap.build(mask, q_len, kv_len, (32, 64)).key_lists()
        dense = mask.dense(q_len, kv_len).flatten(0, 2)
        assert offsets.dtype == keys.dtype == torch.int32
        assert torch.equal(offsets.diff(), dense.sum(1).int())
        assert torch.equal(keys, dense.nonzero()[:, 1].int())

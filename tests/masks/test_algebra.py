"""`&`, `|`, `~`, per_head and per_batch: of dense masks, and of tiles."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import masks as m
from tests.masks.examples import all_masks, combined
from tests.masks.test_masks import check_tiles


@pytest.mark.parametrize("seed", range(25))
def test_combinations(seed):
    n = (1, 65, 130)[seed % 3]
    check_tiles(combined(n, seed), n, n)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_algebra_of_dense_masks(data):
    n = data.draw(st.integers(1, 140))
    masks = all_masks(n)
    left, right = (masks[data.draw(st.sampled_from(sorted(masks)))] for _ in range(2))
    a, b = left.dense(n, n), right.dense(n, n)
    for mask, dense in (
        (left & right, a & b),
        (left | right, a | b),
        (~left, ~a),
        (~(left & ~right), ~(a & ~b)),
    ):
        assert torch.equal(mask.dense(n, n), dense)
        tile = (data.draw(st.sampled_from((16, 64))), data.draw(st.sampled_from((32, 128))))
        assert torch.equal(m.TileMap.build(mask, n, n, tile).dense(), dense)


def test_per_head():
    parts = [m.Causal(), m.Sliding(3, 3), m.Causal(), m.Longformer(2, 5)]
    mask = m.per_head(parts)
    assert (mask.batch, mask.heads, mask.lengths) == (None, 4, None)
    dense = mask.dense(70, 70)
    assert torch.equal(dense, torch.cat([part.dense(70, 70) for part in parts], 1))
    check_tiles(mask, 70, 70)
    check_tiles(~mask & m.BlockDiagonal(20), 70, 70)


def test_per_batch():
    parts = [m.PrefixLM(10), m.PrefixLM(20), m.Full()]
    mask = m.per_batch(parts)
    assert (mask.batch, mask.heads) == (3, None)
    assert torch.equal(mask.dense(30, 50), torch.cat([part.dense(30, 50) for part in parts]))
    check_tiles(mask, 30, 50)


def test_both():
    heads = [m.per_head([m.Causal(), m.Sliding(i, 2)]) for i in range(3)]
    check_tiles(m.per_batch(heads), 65, 65)
    documents = m.DocumentIds(torch.tensor([[0, 0, 1, 1, -1], [0, 1, 1, 1, 1]]))
    mask = m.per_head([documents, m.Causal(), documents & m.Causal()])
    assert (mask.batch, mask.heads, mask.lengths) == (2, 3, (5, 5))
    check_tiles(mask, 5, 5)
    assert not mask.dense(5, 5)[0, 0, 4].any()


@pytest.mark.parametrize("shape", [(3, 1), (1, 2), (3, 2)])
def test_dense_masks_of_batches_and_heads(shape):
    allowed = torch.rand(*shape, 70, 40) < 0.5
    mask = m.DenseMask(allowed)
    assert ((mask.batch or 1), (mask.heads or 1)) == shape
    assert torch.equal(mask.dense(70, 40), allowed)
    check_tiles(mask & m.Causal(), 70, 40)


def test_bounds_of_selections():
    mask = m.per_head([m.Causal(), m.Full(), ~m.Causal()])
    head = torch.tensor([0, 1, 2])
    at = [torch.tensor([x]) for x in (64, 128, 0, 64)]
    kinds = mask.classify(*at, torch.tensor(0), head)
    assert kinds.tolist() == [m.FULL, m.FULL, m.EMPTY]


def test_masks_that_do_not_combine():
    batch_2, batch_3 = (m.per_batch([m.Full()] * b) for b in (2, 3))
    with pytest.raises(ValueError, match=r"different batch do not combine: \[2, 3\]"):
        _ = batch_2 & batch_3
    with pytest.raises(ValueError, match="different batch"):
        m.per_head([batch_2, batch_3])
    with pytest.raises(ValueError, match=r"different lengths .* \[\(3, 3\), \(4, 4\)\]"):
        _ = m.Documents([3]) | m.Documents([4])
    with pytest.raises(ValueError, match="per head already"):
        m.per_head([m.per_head([m.Full()])])
    with pytest.raises(ValueError, match="per batch already"):
        m.per_batch([batch_2])
    with pytest.raises(ValueError, match="empty"):
        m.per_head([])
    with pytest.raises(TypeError, match="list of masks"):
        m.per_head(m.Full())
    with pytest.raises(TypeError, match="int in the list"):
        m.per_head([3])
    with pytest.raises(TypeError):
        m.Full() & 3

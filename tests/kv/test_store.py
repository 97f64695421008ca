"""Stores: rows in, rows out, also where rows are channels."""

import pytest
import torch

from gossamer.kv.layouts import Dense, Side, Sparse
from gossamer.kv.policies import Ranking
from gossamer.kv.store import BlockStore


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(
    "layout", [Dense(), Dense("fp32"), Sparse(8), Sparse(0.5, "fp32")], ids=str
)
def test_round_trip(layout, head_dim):
    store = BlockStore.allocate(Side(layout), 4, 2, head_dim)
    assert store.nbytes == 4 * 2 * Side(layout).block_bytes(head_dim)
    x = torch.randn(50, 2, head_dim).half()
    x[x == 0] = 1  # so that what stays can be seen
    slots = torch.randperm(128)[:50]
    store.write(x, slots)
    back = store.read(slots)
    keep = head_dim if isinstance(layout, Dense) else layout.kept(head_dim)
    assert ((back != 0).sum(-1) == keep).all()
    assert torch.equal(back[back != 0], x[back != 0])


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("policy", ["per_channel", "attention_weighted"])
def test_by_channel(policy, head_dim):
    side = Side(Sparse(10, "fp32"), policy=policy)
    store = BlockStore.allocate(side, 5, 3, head_dim)
    x = torch.randn(64, 3, head_dim)
    slots = torch.cat([torch.arange(96, 128), torch.arange(32, 64)])
    distinct = torch.randperm(64 * 3 * head_dim).view(64, 3, head_dim).float()
    scores = distinct if policy == "attention_weighted" else None
    store.write(x, slots, Ranking(scores=scores))
    back = store.read(slots, torch.float32)
    rank = (x.abs() if scores is None else scores).view(2, 32, 3, head_dim)
    mask = torch.zeros_like(rank).scatter_(1, rank.topk(10, dim=1).indices, 1.0)
    assert torch.equal(back, x * mask.view(x.shape))
    assert not store.read(torch.arange(64, 96), torch.float32).any()


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (torch.arange(30), "must be .*whole blocks of 32"),
        (torch.arange(1, 33), "slots 1, 2, ... are not a whole block; must be 32 in order from a"),
        (torch.arange(32).flip(0), "slots 31, 30, ... are not a whole block"),
        (torch.arange(320, 352), "a slot is 320; must be 0 to 63, or -1 for none"),
    ],
)
def test_channels_are_written_and_read_in_whole_blocks(slots, message):
    store = BlockStore.allocate(Side(Sparse(8), policy="per_channel"), 2, 1, 64)
    store.blocks.fill_(0xA5)
    with pytest.raises(ValueError, match=message):
        store.write(torch.randn(len(slots), 1, 64), slots)
    with pytest.raises(ValueError, match=message):
        store.read(slots)
    assert (store.blocks == 0xA5).all()


def test_blocks_of_channels_can_be_skipped_and_empty():
    store = BlockStore.allocate(Side(Sparse(8), policy="per_channel"), 2, 1, 64)
    x, slots = torch.rand(64, 1, 64) + 1, torch.cat([torch.full((32,), -1), torch.arange(32)])
    store.write(x, slots)
    back = store.read(slots)
    assert not back[:32].any()
    assert ((back[32:] != 0).sum(0) == 8).all()
    store.write(x[:0], slots[:0])
    assert store.read(slots[:0]).shape == (0, 1, 64)


@pytest.mark.parametrize("shape", [(32, 1, 128), (32, 2, 96), (32, 128)])
def test_rows_of_another_shape(shape):
    store = BlockStore.allocate(Side(Sparse(8), policy="per_channel"), 2, 2, 64)
    with pytest.raises(ValueError, match=r"rows have shape .*; must be .*32, 2, 64"):
        store.write(torch.zeros(shape), torch.arange(32))


def test_a_ranking_is_one_thing():
    with pytest.raises(ValueError, match="a ranking has weights and scores; must have one of them"):
        Ranking(weights=torch.ones(1, 8), scores=torch.ones(1, 1, 8))

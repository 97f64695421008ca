"""Stores: rows in, rows out, of one layer or several."""

import pytest
import torch

from gossamer.kv.layouts import Dense, Side, Sparse
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


def test_layers_are_views():
    store = BlockStore(
        Side(Sparse(8)), 64, torch.zeros(2, 3, 2, Side(Sparse(8)).block_bytes(64)).byte()
    )
    x, slots = torch.randn(32, 2, 64), torch.arange(32, 64)
    store.layer(1).write(x, slots)
    back = store.merged().read(slots)
    assert torch.equal(back[:, 2:4], store.layer(1).read(slots))
    assert back[:, 2:4].any()
    assert not back[:, :2].any()
    assert not back[:, 4:].any()


@pytest.mark.parametrize("shape", [(32, 1, 128), (32, 2, 96), (32, 128)])
def test_rows_of_another_shape(shape):
    store = BlockStore.allocate(Side(Sparse(8)), 2, 2, 64)
    with pytest.raises(ValueError, match="x has"):
        store.write(torch.zeros(shape), torch.arange(32))

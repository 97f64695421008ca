"""Tile maps: their layout, what they cost, and that large ones are built in little memory."""

import subprocess
import sys

import pytest
import torch

from gossamer import masks as m
from gossamer.masks import bitmaps, tile_lists
from tests.masks.examples import all_masks


def tiles_of_row(tiles, row):
    part = slice(*tiles.offsets[row : row + 2].tolist())
    return tiles.columns[part].tolist(), tiles.kinds[part].tolist()


def test_layout():
    mask = m.per_head([m.Causal(), m.Streaming(4, 40)])
    tiles = m.TileMap.build(mask, 150, 170, (16, 32))
    assert (tiles.batch, tiles.heads, tiles.rows) == (1, 2, 10)
    assert tiles.offsets.shape == (21,)
    assert tiles.bits.shape[1:] == (16, 1)
    tensors = (tiles.offsets, tiles.tiles, tiles.bits, tiles.order)
    assert all(x.dtype is torch.int32 and x.is_contiguous() for x in tensors)
    for row in range(20):
        columns, kinds = tiles_of_row(tiles, row)
        full = [c for c, kind in zip(columns, kinds, strict=True) if kind < 0]
        partial = columns[len(full) :]
        assert columns == sorted(full) + sorted(partial)
        assert set(kinds[: len(full)]) <= {-1}
    lengths = tiles.offsets.diff()[tiles.order.flatten().long()]
    assert torch.equal(lengths, lengths.sort(descending=True).values)
    assert sorted(tiles.order.flatten().tolist()) == list(range(20))


def test_a_tile_in_full():
    tiles = m.TileMap.build(m.Causal(), 20, 50, (16, 32))
    assert tiles_of_row(tiles, 0)[0] == tiles_of_row(tiles, 1)[0] == [0]
    first, second = (tiles.bits[tiles_of_row(tiles, row)[1][0]] for row in (0, 1))
    assert first[:, 0].tolist() == [2 ** (i + 1) - 1 for i in range(16)]
    # Queries 16 to 19; those beyond the end have no bits.
    assert second[:, 0].tolist() == [2 ** (i + 1) - 1 for i in range(16, 20)] + [0] * 12


def test_ends():
    """Keys beyond the end make a tile partial, queries beyond the end do not."""
    assert m.TileMap.build(m.Full(), 50, 64).counts() == (1, 0, 0, 1.0)
    assert m.TileMap.build(m.Full(), 64, 50).counts() == (0, 1, 0, 1.0)
    assert m.TileMap.build(m.DenseMask(torch.ones(50, 64).bool()), 50, 64).counts()[0] == 1


def test_what_bounds_do_not_tell():
    """Both halves are mixed, together they are full or empty: found by looking."""
    counts = m.TileMap.build(m.Causal() | ~m.Causal(), 256, 256).counts()
    assert counts == (16, 0, 0, 1.0)
    nothing = m.TileMap.build(m.Causal() & ~m.Causal(), 256, 256)
    assert nothing.counts() == (0, 0, 16, 0.0)
    assert nothing.bits.shape == (1, 64, 2)
    assert not nothing.bits.any()
    assert not nothing.dense().any()


def test_equal_patterns_are_stored_once():
    assert len(m.TileMap.build(m.Sliding.causal(64), 4096, 4096).bits) == 2
    assert len(m.TileMap.build(m.Strided(128), 4096, 4096).bits) < 10
    heads = m.per_head([m.Causal(), m.Causal() & m.Full(), m.Sliding.causal(200)])
    tiles = m.TileMap.build(heads, 1024, 1024)
    assert len(tiles.bits.unique(dim=0)) == len(tiles.bits)


@pytest.mark.parametrize("name", sorted(all_masks(9)))
def test_signatures_tell_patterns_apart(name, monkeypatch):
    """Each box evaluated by itself gives the same map."""
    mask = all_masks(333)[name]
    found = m.TileMap.build(mask, 333, 333, (16, 32))

    def every_box(grid, mixed):
        return torch.arange(len(mixed)), mixed

    monkeypatch.setattr(tile_lists, "_representatives", every_box)
    slow = m.TileMap.build(mask, 333, 333, (16, 32))
    assert torch.equal(found.dense(), slow.dense())
    assert torch.equal(found.columns, slow.columns)


def test_in_small_pieces(monkeypatch):
    mask = all_masks(500)["bigbird near"]
    found = m.TileMap.build(mask, 500, 500, (16, 32))
    monkeypatch.setattr(tile_lists, "ENTRIES", 512)
    monkeypatch.setattr(tile_lists, "BOXES", {"cpu": 20})
    pieces = m.TileMap.build(mask, 500, 500, (16, 32))
    assert torch.equal(found.dense(), pieces.dense())


def test_keys_of_many_columns_are_exact():
    columns = [torch.randint(-(2**40), 2**40, (50,))[torch.randint(0, 50, (300,))] for _ in "abc"]
    columns += [torch.randint(0, 2, (300,)), torch.zeros(300).long()]
    keys = tile_lists._one_column(columns, 300)
    _, expected = torch.stack(columns, 1).unique(dim=0, return_inverse=True)
    same = expected[:, None] == expected
    assert torch.equal(keys[:, None] == keys, same)


def test_bitmaps():
    allowed = torch.rand(5, 16, 128) < 0.5
    bits = bitmaps.pack(allowed)
    assert bits.shape == (5, 16, 4)
    assert bits[2, 3, 1] == sum(2**c for c in range(32) if allowed[2, 3, 32 + c]) - (
        2**32 if allowed[2, 3, 63] else 0
    )
    assert torch.equal(bitmaps.unpack(bits), allowed)
    assert torch.equal(bitmaps.ones(bits), allowed.view(5, 16, 4, 32).sum(-1))


@pytest.mark.parametrize("weigh", [bitmaps._weighed, lambda rows, _: torch.zeros(len(rows)).long()])
def test_distinct_patterns(weigh, monkeypatch):
    """Also where all sums are equal, so that they say nothing."""
    monkeypatch.setattr(bitmaps, "_weighed", weigh)
    bits = torch.randint(-2, 2, (200, 2, 1), dtype=torch.int32)
    found, which = bitmaps.distinct(bits)
    assert torch.equal(found[which], bits)
    assert len(found) == len(bits.unique(dim=0))


def test_moving_and_size():
    tiles = m.TileMap.build(m.Causal(), 100, 100)
    moved = tiles.to("meta")
    assert moved.device.type == "meta"
    assert moved.q_len == 100
    assert tiles.nbytes == 4 * sum(
        x.numel() for x in (tiles.offsets, tiles.tiles, tiles.bits, tiles.order)
    )


LARGE = """
import resource, torch
from gossamer.masks import *
n = 131072
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in ("stof-sliding", "stof-longformer", "stof-bigbird", "bigbird", "strided", "causal"):
    tiles = TileMap.build(named(name, n), n, n, (128, 64))
    print(name, tiles.nbytes)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_long_masks_are_built_in_little_memory():
    """A dense one of 131,072 queries and keys has 16 GiB."""
    run = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    assert int(run.stdout.splitlines()[-1]) < 700, run.stdout

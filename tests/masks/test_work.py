"""Work lists: every tile of every row in exactly one piece, and room for their results."""

import pytest
import torch

from gossamer.masks import Causal, Mask, Sliding, TileMap, named, per_head
from gossamer.masks.work import KNOWN, LEAST_KEYS, WIDTH, piece_limit, work_list

MASKS = {
    "longformer": named("stof-longformer", 500),
    "causal": Causal(),
    "heads": per_head([Sliding(40, 0), Causal(), Causal() & ~Causal()]),
    "nothing": Causal() & ~Causal(),
}


def build(mask: Mask, tile: tuple[int, int] = (32, 32)) -> TileMap:
    return TileMap.build(mask, 500, 500, tile, "cpu")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", MASKS)
def test_every_tile_is_in_one_piece(name, limit):
    tiles = build(MASKS[name])
    work = work_list(tiles, limit)
    row, begin, end, slot, first_slot, slots = work[:, :6].unbind(1)
    assert (work.dtype, work.is_contiguous()) == (torch.int32, True)
    assert work.shape[1] == WIDTH
    assert ((end - begin) <= limit).all()
    assert ((end - begin).diff() <= 0).all(), "the longest first"
    seen = sorted((int(b), int(e)) for b, e in zip(begin, end, strict=True) if e > b)
    assert [b for b, _ in seen] == [0, *(e for _, e in seen[:-1])][: len(seen)]
    assert sum(e - b for b, e in seen) == tiles.columns.numel()
    assert sorted(set(row.tolist())) == list(range(tiles.order.numel()))
    for r in range(tiles.order.numel()):
        mine = row == r
        assert begin[mine].min() == tiles.offsets[r]
        assert end[mine].max() == tiles.offsets[r + 1]
        assert (slots[mine] == mine.sum()).all()
        if mine.sum() == 1:
            assert (slot[mine] == -1).all()
        else:
            first = int(first_slot[mine][0])
            assert sorted(slot[mine].tolist()) == list(range(first, first + int(mine.sum())))
    for line, b, e in zip(work, begin, end, strict=True):
        known = slice(int(b), min(int(e), int(b) + KNOWN))
        count = known.stop - known.start
        assert line[8 : 8 + count].tolist() == tiles.columns[known].tolist()
        assert line[8 + KNOWN : 8 + KNOWN + count].tolist() == tiles.kinds[known].tolist()
        assert (line[8 + KNOWN + count :] == -1).all()
    # The kernel makes room for twice as many slots as there are more items than rows.
    assert int(slot.max()) < max(2 * (len(work) - tiles.order.numel()), 1)


def test_pieces_are_as_long_as_a_share_of_the_work():
    tiles = build(MASKS["longformer"])
    assert piece_limit(tiles, 1, 1000) == LEAST_KEYS // 32
    total = tiles.columns.numel()
    assert piece_limit(tiles, 100, 10) == -(-total * 100 // (10 * 8))
    assert piece_limit(tiles, 1, 1000, least_keys=64) == 2


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match="limit is 0; must be >= 1"):
        work_list(build(Causal()), 0)

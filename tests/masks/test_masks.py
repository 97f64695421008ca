"""What each mask means; and that predicate, dense tensor and tiles say the same."""

import pytest
import torch

from gossamer import masks as m
from tests.masks.examples import FREE, all_masks, bound, combined

SIZES = (1, 63, 65, 200)
TILES = ((64, 64), (16, 32), (128, 128))
NAMES = sorted(all_masks(9))


def check_tiles(mask, q_len, kv_len, tiles=TILES):
    dense = mask.dense(q_len, kv_len)
    for tile in tiles:
        found = m.TileMap.build(mask, q_len, kv_len, tile)
        assert torch.equal(found.dense(), dense), (mask, tile)
        assert found.counts().density == pytest.approx(dense.double().mean().item(), abs=1e-12)


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("lengths", [(7, 9), (90, 60), (33, 140)])
def test_meaning_at_any_lengths(name, lengths):
    mask, rule = FREE[name]
    expected = [[rule(i, j) for j in range(lengths[1])] for i in range(lengths[0])]
    assert mask.dense(*lengths)[0, 0].tolist() == expected
    assert mask.lengths is mask.batch is mask.heads is None


@pytest.mark.parametrize("name", bound(9))
def test_meaning_at_its_length(name):
    mask, rule = bound(90)[name]
    expected = [[rule(i, j) for j in range(90)] for i in range(90)]
    assert mask.dense(90, 90)[0, 0].tolist() == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", SIZES)
def test_tiles_are_the_dense_mask(name, n):
    check_tiles(all_masks(n)[name], n, n)


@pytest.mark.parametrize("name", NAMES)
def test_a_longer_mask(name):
    check_tiles(all_masks(1000)[name], 1000, 1000, [(64, 32)])


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("lengths", [(1, 200), (200, 1), (63, 150), (150, 63)])
def test_tiles_of_other_lengths(name, lengths):
    check_tiles(FREE[name][0], *lengths)


@pytest.mark.parametrize("name", NAMES)
def test_predicate_broadcasts(name):
    mask = all_masks(65)[name]
    dense = mask.dense(65, 65)[0, 0]
    zero = torch.zeros((), dtype=torch.long)
    q, k = torch.randint(0, 65, (4, 1, 5)), torch.randint(0, 65, (3, 1))
    found = mask.predicate(zero, zero, q, k)
    assert found.dtype is torch.bool
    assert torch.equal(found.expand(4, 3, 5), dense[q, k])


@pytest.mark.parametrize("name", [*NAMES, *range(20)])
def test_bounds_of_boxes_are_never_wrong(name):
    n = 300
    mask = combined(n, name) if isinstance(name, int) else all_masks(n)[name]
    dense = mask.dense(n, n)[0, 0]
    starts = torch.randint(0, n, (2, 200))
    ends = torch.minimum(starts + torch.randint(1, 80, (2, 200)), torch.tensor(n))
    box = (starts[0], ends[0], starts[1], ends[1])
    zero = torch.zeros((), dtype=torch.long)
    kinds = mask.classify(*box, zero, zero).expand(200)
    assert kinds.dtype is torch.int8
    for kind, q0, q1, k0, k1 in zip(kinds.tolist(), *(x.tolist() for x in box), strict=True):
        entries = dense[q0:q1, k0:k1]
        if kind != m.MIXED:
            assert entries.all() if kind == m.FULL else not entries.any()


@pytest.mark.parametrize("name", sorted(FREE))
def test_bounds_of_simple_masks_are_exact(name):
    """A box that is full or empty is known to be, so that its entries are not looked at."""
    mask, n, size = FREE[name][0], 400, 16
    tiles = mask.dense(n, n)[0, 0].unfold(0, size, size).unfold(1, size, size).flatten(2)
    start = torch.arange(0, n, size)
    zero = torch.zeros((), dtype=torch.long)
    box = (start[:, None], start[:, None] + size, start, start + size)
    found = mask.classify(*box, zero, zero)
    expected = tiles.all(-1).int() - (~tiles.any(-1)).int() + 1
    wrong = (found != expected).sum()
    several = name in ("fixed", "strided", "streaming")  # each part is exact, not all of them
    assert wrong < 0.05 * found.numel() if several else wrong == 0


def test_a_seed_is_a_mask():
    for make in (lambda s: m.BigBird(512, seed=s), lambda s: m.BigBirdNear(seed=s)):
        first, again, other = (make(s).dense(512, 512) for s in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_bigbird_has_its_random_blocks_outside_of_everything_else():
    mask = m.BigBird(640, window=32, tokens=range(64), block=32, random=3)
    rest = m.Longformer(32, range(64)).dense(640, 640)
    far = mask.dense(640, 640) & ~rest
    blocks = far[0, 0].view(20, 32, 20, 32).sum((1, 3))
    assert set(blocks.unique().tolist()) == {0, 32 * 32}
    assert (blocks[2:] > 0).sum(1).eq(3).all()


def test_near_bigbird_takes_its_share_of_one_neighbour():
    mask = m.BigBirdNear(0, (), block=64, share=0.1)
    found = mask.dense(6400, 6400)[0, 0] & ~torch.eye(6400, dtype=torch.bool)
    blocks = found.view(100, 64, 100, 64).sum((1, 3))
    rows, columns = blocks.nonzero(as_tuple=True)
    assert (rows - columns).abs().eq(1).all()
    assert rows.bincount().le(1).all()
    assert len(rows) >= 99  # the last one may have its neighbour beyond the end
    assert blocks[rows, columns].double().mean() / 64**2 == pytest.approx(0.1, abs=0.003)
    assert 20 < (columns > rows).sum() < 80


def test_shares_of_nothing_and_of_everything():
    for share, expected in ((0, 0), (1, 64)):
        mask = m.BigBirdNear(0, (), block=8, share=share) & ~m.Sliding(0, 0)
        assert mask.dense(8, 16).sum() == expected


def test_documents_from_everywhere():
    mask = m.Documents([3, 0, 5])
    same = (
        m.Documents.from_cu_seqlens(torch.tensor([0, 3, 3, 8], dtype=torch.int32)),
        m.Documents(torch.tensor([3, 0, 5])),
        m.DocumentIds(torch.tensor([7, 7, 7, 2, 2, 2, 2, 2])),
    )
    for other in same:
        assert torch.equal(mask.dense(8, 8), other.dense(8, 8))
    assert mask == same[0] == same[1]
    more_keys = m.Documents([1, 2], [3, 5]).dense(3, 8)[0, 0]
    assert more_keys.int().tolist() == [[1] * 3 + [0] * 5] + [[0] * 3 + [1] * 5] * 2


def test_equal_parameters_make_equal_masks():
    for make in (lambda: m.Causal() & m.Sliding(3, 4), lambda: m.BigBird(100, tokens=[0, 1])):
        assert make() == make()
        assert hash(make()) == hash(make())
    assert m.Longformer(4, [0, 1, range(2, 5)]) == m.Longformer(4, range(5))
    assert m.Causal() & m.Full() != m.Causal() | m.Full()

"""Bad parameters, lengths and devices get one clear exception."""

import pytest
import torch

from gossamer import masks as m

ONES = torch.ones(3, 4, dtype=torch.bool)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: m.Sliding(-1, 0), "Sliding: before is -1; must be at least 0"),
        (lambda: m.Sliding(0, -2), "Sliding: after is -2"),
        (lambda: m.Dilated(4, 0, 0), "Dilated: dilation is 0; must be at least 1"),
        (lambda: m.Strided(0), "Strided: stride is 0"),
        (lambda: m.Fixed(8, 9), "Fixed: summary is 9; must be 1 to 8"),
        (lambda: m.PrefixLM(-1), "PrefixLM: prefix is -1"),
        (lambda: m.BlockDiagonal(0), "BlockDiagonal: block is 0"),
        (lambda: m.Streaming(4, 0), "Streaming: window is 0"),
        (lambda: m.Longformer(-1, 0), "before is -1"),
        (lambda: m.Longformer(1, -1), "Longformer: tokens is -1"),
        (lambda: m.Longformer(1, range(-3, 2)), r"range\(-3, 2\); indices must be at least 0"),
        (lambda: m.BigBird(0), "BigBird: n is 0"),
        (lambda: m.BigBird(9, tokens=range(10)), "token 9 is beyond the end"),
        (lambda: m.BigBird(100, random=-1), "BigBird: random is -1"),
        (lambda: m.BigBirdNear(share=1.5), "BigBirdNear: share is 1.5; must be 0 to 1"),
        (lambda: m.Documents([3, -1]), "Documents: lengths is -1"),
        (lambda: m.Documents([0, 0]), "lengths are all 0"),
        (lambda: m.Documents([]), "lengths are all 0"),
        (lambda: m.Documents([1], [1, 2]), "1 lengths and 2 key_lengths"),
        (lambda: m.Documents.from_cu_seqlens([1, 2]), "must start with 0 and not decrease"),
        (lambda: m.Documents.from_cu_seqlens([0, 5, 2]), "must start with 0 and not decrease"),
        (lambda: m.DocumentIds(torch.zeros(2, 2, 2).int()), r"shape \[2, 2, 2\]"),
        (lambda: m.DocumentIds(torch.zeros(2, 3).int(), torch.zeros(3).int()), "2 batch elements"),
        (lambda: m.DenseMask(ONES[0]), r"DenseMask: shape is \[4\]"),
        (lambda: m.DenseMask(ONES[:0]), r"DenseMask: shape is \[0, 4\]"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: m.Causal(1.5), "Causal: offset is 1.5; must be an integer"),
        (lambda: m.Sliding(True, 0), "Sliding: before is True; must be an integer"),
        (lambda: m.Longformer(1, ["a"]), "tokens is 'a'; must be an integer"),
        (lambda: m.DenseMask(ONES.float()), "torch.float32; must be torch.bool"),
        (lambda: m.DenseMask([[True]]), "list; must be a torch.Tensor"),
        (lambda: m.DocumentIds([1, 2]), "list; must be a tensor of int32 or int64"),
        (lambda: m.DocumentIds(torch.zeros(3)), "torch.float32; must be a tensor of int32"),
    ],
)
def test_bad_types(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("mask", "lengths", "message"),
    [
        (m.Causal(), (0, 4), "q_len is 0; must be 1 to"),
        (m.Causal(), (4, 0), "kv_len is 0; must be 1 to"),
        (m.Documents([2, 3]), (6, 6), "q_len and kv_len are 6 and 6; must be 5 and 5"),
        (m.DenseMask(ONES), (4, 3), "q_len and kv_len are 4 and 3; must be 3 and 4"),
        (m.BigBird(100), (99, 100), "must be 100 and 100"),
        (m.Causal() & ~m.DenseMask(ONES), (4, 4), "must be 3 and 4"),
        (m.per_head([m.Longformer(1, 9)]), (9, 9), "token 9 is beyond the end"),
    ],
)
def test_lengths_that_do_not_fit(mask, lengths, message):
    for ask in (mask.dense, lambda q, k: m.TileMap.build(mask, q, k)):
        with pytest.raises(ValueError, match=message):
            ask(*lengths)


@pytest.mark.parametrize("tile", [(8, 64), (64, 16), (48, 64), (64, 256)])
def test_tiles_of_other_sizes(tile):
    with pytest.raises(ValueError, match="must be one of"):
        m.TileMap.build(m.Causal(), 9, 9, tile)


@pytest.mark.parametrize(
    "mask",
    [
        m.DenseMask(ONES),
        m.Documents([3]),
        m.BigBird(100),
        m.Longformer(1, range(0, 99, 3)),
        m.per_head([m.Causal(), m.DenseMask(ONES)]),
    ],
)
def test_a_mask_on_another_device(mask):
    """`meta` stands for a GPU here."""
    index = torch.zeros(1, dtype=torch.int32)
    moved = mask.to("meta")
    with pytest.raises(
        ValueError, match=r"is on meta, the indices are on cpu; use mask.to\('cpu'\)"
    ):
        moved.predicate(index, index, index, index)
    away = index.to("meta")
    assert moved.predicate(away, away, away, away).device.type == "meta"

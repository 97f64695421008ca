"""Masks by name."""

import pytest
import torch

from gossamer import masks as m
from gossamer.masks.presets import PRESETS, parameters_of, summary_of

# Full and partial tiles of 64 x 64 of STOF's own masks, at 256, 1,024 and 4,096 tokens.
STOF = {
    "stof-causal": [(6, 4), (120, 16), (2016, 64)],
    "stof-sliding": [(0, 7), (0, 31), (0, 127)],
    "stof-longformer": [(2, 12), (2, 96), (2, 432)],
    "stof-bigbird": [(1, 13), (1, 73), (1, 313)],
}
STOF_DENSITY = {"stof-causal": 0.50012, "stof-sliding": 0.01575, "stof-longformer": 0.04650}


@pytest.mark.parametrize("name", STOF)
def test_stof_masks_have_the_tiles_of_stof(name):
    for n, expected in zip((256, 1024, 4096), STOF[name], strict=True):
        counts = m.TileMap.build(m.named(name, n), n, n).counts()
        assert (counts.full, counts.partial) == expected
    if name in STOF_DENSITY:
        assert counts.density == pytest.approx(STOF_DENSITY[name], abs=5e-6)
    else:
        assert counts.density == pytest.approx(0.0316, abs=2e-4)


def test_stof_dilated():
    seen = m.named("stof-dilated", 200).dense(200, 200)[0, 0, 100].nonzero().flatten()
    assert seen.tolist() == list(range(36, 101, 2))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("n", [1, 63, 300])
def test_every_name_at_every_length(name, n):
    mask = m.named(name, n)
    assert torch.equal(m.TileMap.build(mask, n, n).dense(), mask.dense(n, n))
    assert summary_of(name)


def test_parameters():
    assert m.named("sliding", 9, before=3, after=1) == m.Sliding(3, 1)
    assert m.named("longformer", 99, window=3, tokens=[5, 7]) == m.Longformer(3, [5, 7])
    assert parameters_of("fixed") == {"stride": 128, "summary": 8}


@pytest.mark.parametrize(
    ("name", "n", "parameters", "message"),
    [
        ("slide", 9, {}, "mask is 'slide'; must be one of full, causal"),
        (
            "sliding",
            9,
            {"width": 3},
            "mask sliding has no parameter 'width'; it has: before, after",
        ),
        ("full", 9, {"width": 3}, "mask full has no parameter 'width'; it has: none"),
        ("sliding", 0, {}, "n is 0; must be 1 to"),
        ("longformer", 9, {"tokens": [9]}, "token 9 is beyond the end"),
        ("sliding", 9, {"before": -1}, "Sliding: before is -1; must be at least 0"),
    ],
)
def test_bad_names_and_parameters(name, n, parameters, message):
    with pytest.raises(ValueError, match=message):
        m.named(name, n, **parameters)

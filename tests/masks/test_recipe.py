"""The recipe "Add a mask" of docs/masks.md, followed step by step with the mask of toy.py."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gossamer import masked_attention
from gossamer import masks as m
from gossamer.attention import prepare
from gossamer.attention.candidates import Arguments
from gossamer.attention.plans import plan_of
from gossamer.attention.selector import candidates
from gossamer.cli.main import app
from gossamer.masks.presets import PRESETS
from tests.attention.oracle import check, inputs, oracle
from tests.masks import examples
from tests.masks import test_masks as matrix
from tests.masks.toy import Checkerboard, checkerboard, rule

LENGTHS = [(7, 9), (90, 60), (33, 140), (200, 200)]
NAME = "checkerboard"


def test_the_recipe_is_short():
    page = Path(__file__).parents[2].joinpath("docs/masks.md").read_text()
    steps = re.findall(r"^\d\. ", page.split("## Add a mask", 1)[1].split("\n## ")[0], re.M)
    assert 1 <= len(steps) <= 6


@pytest.mark.parametrize("lengths", LENGTHS)
def test_step_1_the_predicate_is_the_dense_mask(lengths):
    mask = Checkerboard(12)
    expected = [[rule(12, i, j) for j in range(lengths[1])] for i in range(lengths[0])]
    assert mask.dense(*lengths)[0, 0].tolist() == expected
    q, k = (torch.arange(length) for length in lengths)
    zero = torch.zeros((), dtype=torch.long)
    assert mask.predicate(zero, zero, q[:, None], k).tolist() == expected
    with pytest.raises(ValueError, match="Checkerboard: size is 0; must be at least 1"):
        Checkerboard(0)


class OnlyPredicate(Checkerboard):
    """What steps 2 and 3 leave out costs time, not truth."""

    classify = m.Mask.classify
    signature = m.Mask.signature


@pytest.mark.parametrize("lengths", LENGTHS)
def test_steps_2_and_3_tiles_are_the_dense_mask(lengths):
    for mask in (
        Checkerboard(12),
        Checkerboard(32),
        OnlyPredicate(12),
        Checkerboard(12) & m.Causal(),
    ):
        matrix.check_tiles(mask, *lengths)


def test_steps_2_and_3_save_work(monkeypatch):
    entries = []
    for kind in (Checkerboard, OnlyPredicate):
        seen = [0]

        def counted(self, b, h, q, k, seen=seen):
            seen[0] += torch.broadcast_shapes(q.shape, k.shape).numel()
            return (q // self.size + k // self.size) % 2 == 0

        monkeypatch.setattr(kind, "predicate", counted)
        m.TileMap.build(kind(64), 1024, 1024, (64, 64))
        m.TileMap.build(kind(48), 1024, 1024, (64, 64))
        entries.append(seen[0])
    assert entries[0] < 0.1 * entries[1]


def test_step_3_attention_runs_under_it():
    n, (q, k, v) = 130, inputs(2, 4, 2, 130, 130, 64)
    for mask in (Checkerboard(), Checkerboard(20) & m.Causal(), ~Checkerboard(16)):
        expected = oracle(q, k, v, mask.dense(n, n))
        check(masked_attention(q, k, v, mask), expected, q.dtype)
        check(masked_attention(q, k, v, mask, return_lse=True), expected, q.dtype)
        prepared = prepare(mask, n, n, "cpu")
        args = Arguments(q, k, v, None, 0.125, 0.0, False)
        for candidate in candidates(prepared, args):
            out, _ = plan_of(prepared, candidate, args).run(q, k, v, None, 0.125, 0.0)
            check(out, expected, q.dtype)


def test_step_5_a_preset(monkeypatch):
    monkeypatch.setitem(PRESETS, NAME, checkerboard)
    assert m.named(NAME, 100, size=8) == Checkerboard(8)
    listed = CliRunner().invoke(app, ["masks", "list"]).output
    assert "blocks that see every second block" in listed
    shown = CliRunner().invoke(app, ["masks", "show", NAME, "--n", "64", "--size", "32"])
    assert shown.exit_code == 0
    assert "density 50.00%" in shown.output


def test_step_6_the_matrix_runs_over_it(monkeypatch):
    monkeypatch.setitem(examples.FREE, NAME, (Checkerboard(12), partial(rule, 12)))
    matrix.test_meaning_at_any_lengths(NAME, (33, 140))
    matrix.test_tiles_are_the_dense_mask(NAME, 200)
    matrix.test_tiles_of_other_lengths(NAME, (150, 63))
    matrix.test_predicate_broadcasts(NAME)
    matrix.test_bounds_of_boxes_are_never_wrong(NAME)
    matrix.test_bounds_of_simple_masks_are_exact(NAME)

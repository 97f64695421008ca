"""The bits that a number of bytes buys: no others have a smaller error."""

import re
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.kv.bits import (
    KERNEL_HEAD_DIMS,
    KERNEL_PAIRS,
    choices,
    pick_bits,
    pick_both,
    pick_kernel_pair,
)
from gossamer.kv.layouts import Coded
from gossamer.ops.kv_profile import GROUP_BITS

GROUPS = 4


def random_errors(groups=GROUPS):
    """More bits are better, and the first groups are worth most."""
    worth = torch.rand(groups).sort(descending=True).values ** 4
    return [(w * worth).tolist() for w in (1e-4, 0.01, 0.04, 0.1, 1.0)]


def brute(table, nbytes):
    """The least error of all bits that never rise, of at most so many bytes."""
    return min(
        (sum(table[GROUP_BITS.index(b)][g] for g, b in enumerate(bits)), bits)
        for bits in combinations_with_replacement(GROUP_BITS, GROUPS)
        if 0 < sum(bits) <= nbytes
    )


@given(st.integers(8, 40))
def test_the_best_of_all_ways_to_spend_bytes(nbytes):
    table = random_errors()
    found = pick_bits({"none": table}, nbytes)
    error, bits = brute(table, nbytes // 8 * 8)
    assert found.bits == bits
    assert found.error == pytest.approx(error)
    assert found.nbytes <= nbytes
    assert found.layout.format(8 * GROUPS).nbytes == 32 * found.nbytes


@given(st.integers(16, 60))
def test_both_sides_share_bytes(nbytes):
    k, v = ({"none": random_errors(), "row": random_errors()} for _ in range(2))
    best = pick_both(k, v, nbytes)
    assert sum(choice.nbytes for choice in best) <= nbytes
    for a in choices(k, nbytes):
        for b in choices(v, nbytes):
            if a.nbytes + b.nbytes <= nbytes:
                assert a.error + b.error >= sum(choice.error for choice in best)


def test_a_scale_is_taken_where_it_is_worth_its_bytes():
    plain = random_errors()
    better = [[x / 10 for x in line] for line in plain]
    assert pick_bits({"none": plain, "row": better}, 18).scales == "row"
    assert pick_bits({"none": plain, "row": better}, 18).nbytes == 18
    assert pick_bits({"none": plain, "row": plain}, 18).scales == "none"
    assert pick_bits({"none": better, "row": plain}, 16).layout == Coded(
        pick_bits({"none": better}, 16).layout.bits
    )


def test_no_room():
    with pytest.raises(ValueError, match=r"7.5 bytes have no room for codes; must be at least 8"):
        pick_bits({"none": random_errors()}, 7.5)
    with pytest.raises(ValueError, match="15 bytes have no room for codes; must be at least 18"):
        pick_both({"none": random_errors()}, {"row": random_errors()}, 15)


def of_groups(count):
    return [[error / (g + 1) for g in range(count)] for error in (1e-4, 0.01, 0.04, 0.1, 1.0)]


def test_pairs_with_kernels_are_taken_where_they_fit():
    table = {"row": of_groups(8)}
    k, v = pick_kernel_pair(table, table, 60)
    assert (k.bits, v.bits) == ((8, 4, 4, 4, 4, 4, 2, 2), (4, 4, 3, 3, 3, 3, 2, 2))
    assert (k.nbytes, v.nbytes) == (34, 26)
    assert pick_kernel_pair(table, table, 59)[0].bits == (8, 4, 4, 2, 2, 2, 2, 0)
    assert pick_kernel_pair(table, table, 35) is None
    assert pick_kernel_pair({"none": of_groups(8)}, table, 200) is None
    assert pick_kernel_pair({"row": of_groups(12)}, {"row": of_groups(12)}, 200) is None  # 96


def test_the_pairs_are_those_that_are_compiled():
    source = Path("csrc/attention/decode/codes_launch.cuh").read_text()
    names = dict(re.findall(r"using (\w+) = FixedTiles<D, Values::\w+, ([\d, ]+)>;", source))
    tiles = {name: bits.replace(", ", "") for name, bits in names.items()}
    tiles = {name: bits * 8 if len(bits) == 1 else bits for name, bits in tiles.items()}
    launched = re.findall(r"launch_if<D, (\w+), Scales::row, (\w+), Scales::row>", source)
    compiled = {(tiles[k], tiles[v]) for k, v in launched if k != "Float8"}
    assert compiled == set(KERNEL_PAIRS)
    assert KERNEL_HEAD_DIMS == (64, 128, 256)
    assert all(Path(f"csrc/attention/decode/codes_{d}.cu").exists() for d in KERNEL_HEAD_DIMS)

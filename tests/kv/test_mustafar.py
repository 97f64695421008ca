"""Mustafar's format and its pruning rule: byte for byte what a slow loop writes."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.kv.mustafar import compress_key, compress_value, decompress, prune

COMPRESS = {"key": compress_key, "value": compress_value}
SIDES = tuple(COMPRESS)


def bits(x):
    """Comparable bit for bit, NaN included; -0.0 counts as 0.0, which is what comes back."""
    return torch.where(x == 0, torch.zeros_like(x), x).view(torch.int16)


def distinct(*shape):
    """Every magnitude 1 to D once per row, in random order, with random signs."""
    order = torch.rand(shape).argsort(dim=-1) + 1
    return (order * (torch.randint(0, 2, shape) * 2 - 1)).half()


def coordinates(side, tokens, width):
    """The (token, channel) pairs of each tile, tiles in the order of storage."""
    for block in range(0, tokens, 64):
        if side == "key":
            for channel in range(width):
                yield [(block + i, channel) for i in range(64)]
        else:
            for first in range(0, width, 64):
                for token in range(block, block + 64):
                    yield [(token, first + i) for i in range(64)]


def oracle(x, side):
    """Bitmaps as unsigned numbers, offsets and values of one [tokens, D] as Python lists."""
    rows = x.tolist()
    bitmaps, offsets, values = [], [0], []
    for tile in coordinates(side, *x.shape):
        entries = [rows[token][channel] for token, channel in tile]
        bitmaps.append(int("".join("1" if e != 0 else "0" for e in entries), 2))
        values += [e for e in entries if e != 0]
        while len(values) % 8 != 0:  # every tile before this one ended on a multiple of 8
            values.append(0.0)
        offsets.append(len(values) * 2 // 4)
    return bitmaps, offsets, values


def assert_same_as_oracle(x, side):
    got = COMPRESS[side](x)
    bitmaps, offsets, values = oracle(x, side)
    assert [b % 2**64 for b in got.bitmaps.tolist()] == bitmaps
    assert got.offsets.tolist() == offsets
    assert got.values.tolist() == values
    return got


@pytest.mark.parametrize("side", SIDES)
def test_writes_what_the_oracle_writes(side):
    """Two blocks of tokens and two of channels, so each order of tiles shows."""
    x = prune(torch.randn(128, 128).half(), 0.5)
    x[64:, 32:] = 0
    x[:64, :64] = torch.randn(64, 64).half()
    got = assert_same_as_oracle(x, side)
    assert (got.bitmaps.dtype, got.offsets.dtype) == (torch.int64, torch.int32)
    assert (got.values.dtype, got.shape, got.side) == (torch.float16, (128, 128), side)


@pytest.mark.parametrize("side", SIDES)
def test_sequences_follow_each_other(side):
    """Offsets restart with each sequence; its values lie behind those of the one before."""
    x = torch.stack([prune(torch.randn(64, 128).half(), s) for s in (0.8, 0.5, 0.7)])
    got = COMPRESS[side](x)
    want = [COMPRESS[side](one) for one in x]
    assert got.bitmaps.equal(torch.stack([w.bitmaps for w in want]))
    assert got.offsets.equal(torch.stack([w.offsets for w in want]))
    assert got.values.equal(torch.cat([w.values for w in want]))
    assert decompress(got).equal(x)


def test_bits_offsets_and_padding_by_hand():
    x = torch.zeros(64, 4, dtype=torch.float16)
    x[0, 0] = 1  # the first token: the most significant bit
    x[63, 1] = 2  # the last token: the least significant bit
    x[:9, 2] = 3  # 9 entries take 16 places
    got = compress_key(x)
    assert got.bitmaps.tolist() == [-(2**63), 1, -(2**55), 0]  # 9 leading ones are -2**55
    assert got.offsets.tolist() == [0, 4, 8, 16, 16]  # 8, 8, 16 and 0 values, two to a unit
    assert got.values.tolist() == [1] + [0] * 7 + [2] + [0] * 7 + [3] * 9 + [0] * 7
    assert got.nbytes == 4 * 8 + 5 * 4 + 32 * 2
    assert got.ratio == got.nbytes / (64 * 4 * 2)


def test_key_and_value_run_along_different_axes():
    x = torch.zeros(64, 64, dtype=torch.float16)
    x[3, :] = 1  # one token
    assert compress_value(x).bitmaps.nonzero().tolist() == [[3]]
    assert set(compress_key(x).bitmaps.tolist()) == {1 << (63 - 3)}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("sparsity", [0.5, 0.7, 0.8])
def test_round_trip_of_pruned_data(side, sparsity):
    x = prune(torch.randn(2, 3, 128, 128).half(), sparsity)
    got = COMPRESS[side](x)
    back = decompress(got)
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    assert back.equal(x)
    assert got.bitmaps.shape == (2, 3, 256)
    assert got.offsets.shape == (2, 3, 257)


@pytest.mark.parametrize("side", SIDES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip_of_any_bits(side, data):
    """Any of the 65,536 float16 patterns: NaN with its payload, inf, subnormals, both zeros."""
    lead = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    tokens = 64 * data.draw(st.integers(1, 3))
    width = data.draw(st.integers(1, 70)) if side == "key" else 64 * data.draw(st.integers(1, 3))
    density = data.draw(st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    shape = (*lead, tokens, width)
    patterns = torch.randint(-(2**15), 2**15, shape, generator=generator).to(torch.int16)
    patterns *= torch.rand(shape, generator=generator) < density
    x = patterns.view(torch.float16)
    assert bits(decompress(COMPRESS[side](x))).equal(bits(x))


@pytest.mark.parametrize("side", SIDES)
def test_special_values(side):
    inf, nan = math.inf, math.nan
    x = torch.zeros(64, 64, dtype=torch.float16)
    x[5, :6] = torch.tensor([inf, -inf, nan, -0.0, 2.0**-24, 65504])
    got = COMPRESS[side](x)
    assert (got.values != 0).sum() == 5  # all but -0.0
    back = decompress(got)
    assert bits(back).equal(bits(x))
    assert not back[5, 3].signbit()


@pytest.mark.parametrize("side", SIDES)
def test_empty_and_full_tiles(side):
    zeros = torch.zeros(64, 64, dtype=torch.float16)
    got = COMPRESS[side](zeros)
    assert (got.values.numel(), got.offsets.tolist()) == (0, [0] * 65)
    assert decompress(got).equal(zeros)
    full = COMPRESS[side](zeros + 1)
    assert (set(full.bitmaps.tolist()), full.values.numel()) == ({-1}, 64 * 64)
    assert full.offsets.tolist() == list(range(0, 65 * 32, 32))
    assert decompress(full).equal(zeros + 1)


@pytest.mark.parametrize("side", SIDES)
def test_any_strides(side):
    x = prune(torch.randn(128, 3, 64).half(), 0.5).transpose(0, 1)
    assert decompress(COMPRESS[side](x)).equal(x)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("sparsity", "ratio"), [(0.5, 0.656), (0.7, 0.462), (0.8, 0.357)])
def test_bytes_relative_to_dense(side, sparsity, ratio):
    x = prune(torch.randn(4096, 128), sparsity).half()
    assert COMPRESS[side](x).ratio == pytest.approx(ratio, abs=0.004)


def check_prune(x, sparsity, exact):
    """The kept count of each row, once the kept are known to be x's largest, unchanged."""
    got = prune(x, sparsity, exact=exact)
    keep = got != 0
    assert got.equal(torch.where(keep, x, torch.zeros_like(x)))
    size = x.abs()
    largest_dropped = size.masked_fill(keep, 0).amax(dim=-1)
    assert (largest_dropped <= size.masked_fill(~keep, math.inf).amin(dim=-1)).all()
    return set(keep.sum(dim=-1).flatten().tolist())


@pytest.mark.parametrize(("sparsity", "kept"), [(0.5, 65), (0.7, 40), (0.8, 27)])
def test_kept_counts(sparsity, kept):
    """Mustafar keeps one more than was asked for; exact does not."""
    x = distinct(2, 50, 128)
    before = x.clone()
    assert check_prune(x, sparsity, exact=False) == {kept}
    assert check_prune(x, sparsity, exact=True) == {kept - 1}
    assert x.equal(before)


def test_ties():
    x = torch.tensor([3.0, -1.0, 2.0, 1.0, -1.0, 1.0, 5.0, 0.5], dtype=torch.float16)
    assert prune(x, 0.5).tolist() == [3, -1, 2, 1, -1, 1, 5, 0]  # the 4th smallest is 1
    assert prune(x, 0.5, exact=True).tolist() == [3, -1, 2, 0, 0, 0, 5, 0]
    ones = torch.ones(5, 128)
    assert prune(ones, 0.8).equal(ones)
    assert prune(ones, 0.8, exact=True).equal(torch.cat([ones[:, :26], 0 * ones[:, 26:]], dim=1))


@settings(max_examples=50, deadline=None)
@given(
    row=st.lists(st.integers(-4, 4), min_size=1, max_size=20),
    sparsity=st.floats(0, 1, exclude_max=True),
)
def test_prune_against_sorted_lists(row, sparsity):
    k = int(sparsity * len(row))
    x = torch.tensor([row, row], dtype=torch.float32)
    threshold = sorted(abs(v) for v in row)[max(k, 1) - 1]
    assert prune(x, sparsity).tolist() == [[v if abs(v) >= threshold else 0 for v in row]] * 2
    kept = sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))[: len(row) - k]
    want = [v if i in kept else 0 for i, v in enumerate(row)]
    assert prune(x, sparsity, exact=True).tolist() == [want] * 2


@pytest.mark.parametrize("exact", [False, True])
def test_nothing_dropped(exact):
    x = torch.randn(3, 10)
    for sparsity in (0, 0.0, 0.099):
        got = prune(x, sparsity, exact=exact)
        assert got.equal(x)
        assert got is not x
    assert prune(torch.zeros(0, 8), 0.5, exact=exact).shape == (0, 8)


@pytest.mark.parametrize("exact", [False, True])
def test_prune_keeps_nan_and_infinity(exact):
    x = torch.tensor([math.nan, 1.0, -math.inf, 2.0, 3.0, 4.0])
    torch.testing.assert_close(prune(x, 0.5, exact=exact)[[0, 2]], x[[0, 2]], equal_nan=True)
    mostly = torch.tensor([math.nan, 1.0, math.nan, math.nan])
    assert prune(mostly, 0.5)[0].isnan()  # the threshold itself is NaN
    assert prune(mostly, 0.5, exact=exact)[1] == 0


def half(*shape):
    return torch.zeros(shape, dtype=torch.float16)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: compress_key(torch.zeros(64, 64)),
            TypeError,
            "compress_key: x has dtype float32; must be float16",
        ),
        (
            lambda: compress_value([1.0]),
            TypeError,
            "compress_value: x is list; must be a torch.Tensor",
        ),
        (
            lambda: compress_key(half(64)),
            ValueError,
            "compress_key: x has shape [64]; must be [..., tokens, D] and not empty",
        ),
        (
            lambda: compress_value(half(0, 64)),
            ValueError,
            "compress_value: x has shape [0, 64]; must be [..., tokens, D] and not empty",
        ),
        (
            lambda: compress_key(half(2, 100, 64)),
            ValueError,
            "compress_key: x has shape [2, 100, 64], tokens is 100; must be a multiple of 64",
        ),
        (
            lambda: compress_value(half(32, 64)),
            ValueError,
            "compress_value: x has shape [32, 64], tokens is 32; must be a multiple of 64",
        ),
        (
            lambda: compress_value(half(64, 80)),
            ValueError,
            "compress_value: x has shape [64, 80], D is 80; must be a multiple of 64",
        ),
        (
            lambda: prune(torch.zeros(4), 1.0),
            ValueError,
            "prune: sparsity is 1.0; must be >= 0 and < 1",
        ),
        (
            lambda: prune(torch.zeros(4), -0.1, exact=True),
            ValueError,
            "prune: sparsity is -0.1; must be >= 0 and < 1",
        ),
        (
            lambda: prune(torch.zeros(4), math.nan),
            ValueError,
            "prune: sparsity is nan; must be >= 0 and < 1",
        ),
        (
            lambda: prune(torch.zeros(4), "half"),
            TypeError,
            "prune: sparsity is str; must be a float",
        ),
        (
            lambda: prune(torch.tensor(1.0), 0.5),
            ValueError,
            "prune: x has 0 dimensions; must have at least 1",
        ),
        (
            lambda: prune(torch.zeros(4, dtype=torch.int32), 0.5),
            TypeError,
            "prune: x has dtype int32; must be one of float32, float16, bfloat16",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_contradictory_parts():
    good = compress_key(torch.ones(64, 2, dtype=torch.float16))
    cases = [
        ({"values": good.values[:-1]}, "values has 127 entries; must have 128, as offsets say"),
        ({"offsets": good.offsets + 1}, "offsets differ; must be the running sums of the bitmaps"),
        ({"bitmaps": good.bitmaps[:1]}, "bitmaps has 1 tiles; must have 2, as shape says"),
    ]
    for change, message in cases:
        with pytest.raises(ValueError, match=f"^decompress: {message}$"):
            decompress(dataclasses.replace(good, **change))


@pytest.mark.gpu
@pytest.mark.parametrize("side", SIDES)
def test_same_on_the_gpu(side):
    x = torch.randn(3, 256, 128).half()
    for exact in (False, True):
        assert prune(x.cuda(), 0.7, exact=exact).cpu().equal(prune(x, 0.7, exact=exact))
    x = prune(x, 0.7)
    want, got = COMPRESS[side](x), COMPRESS[side](x.cuda())
    for part in ("bitmaps", "values", "offsets"):
        assert getattr(got, part).cpu().equal(getattr(want, part))
    assert decompress(got).cpu().equal(x)

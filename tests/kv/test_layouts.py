"""Layouts: what they accept, what they take in bytes."""

import pytest

from gossamer.kv.layouts import Coded, Dense, Side, Sparse, parse_layout
from gossamer.ops.kv_block import BlockFormat

HEAD_DIMS = (64, 80, 96, 128, 256)


@pytest.mark.parametrize(
    ("keep", "values", "per_row"),
    [
        (64, "fp16", 144), (64, "int8", 82), (40, "fp16", 96), (40, "int8", 58), (40, "int4", 38),
        (32, "fp16", 80), (32, "int8", 50), (40, "fp8", 58), (40, "bf16", 96),
    ],
)  # fmt: skip
def test_bytes_per_row_of_128(keep, values, per_row):
    """16 of bitmap, the values, 2 of scale; dense float16 takes 256."""
    assert Side(Sparse(keep, values)).block_bytes(128) == 32 * per_row
    assert Side(Dense()).block_bytes(128) == 32 * 256


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_bytes_by_the_formula(head_dim):
    for values, bits in (("fp16", 16), ("fp8_e4m3", 8), ("int8", 8), ("int4", 4), ("int2", 2)):
        scale = 0 if bits == 16 else 2
        for keep in range(1, head_dim + 1):
            row = head_dim // 8 + -(-keep // 8) * bits + scale
            assert Side(Sparse(keep, values)).block_bytes(head_dim) == 32 * row
        row = head_dim * bits // 8 if bits == 16 else -(-head_dim * bits // 64) * 8
        assert Side(Dense(values)).block_bytes(head_dim) == 32 * (row + scale)
    # KIVI: scale and minimum in float16, per channel of 32 tokens or per 32 channels of a token.
    assert Dense("int4", "channel").format(head_dim).nbytes == 16 * head_dim + 4 * head_dim
    if head_dim % 32 == 0:
        assert Dense("int2", "group").format(head_dim).nbytes == 8 * head_dim + 4 * head_dim


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_blocks_stay_aligned(head_dim):
    for values in ("fp32", "fp16", "fp8_e4m3", "int8", "int4", "int3", "int2"):
        for keep in (None, *range(1, head_dim + 1)):
            for scales in (None, "channel") if values.startswith("int") else (None,):
                assert BlockFormat(head_dim, keep, values, scales).nbytes % 16 == 0


def test_bytes_of_coded_rows():
    """Bits times channels, filled up to 8 bytes, and 2 of a scale."""
    for bits, row in (("4x64", 32), ("8x8+4x40+2x16", 32), ("3x64", 24), ("2x56+0x8", 16)):
        assert Side(Coded(bits)).block_bytes(64) == 32 * row
        assert Side(Coded(bits, "row")).block_bytes(64) == 32 * (row + 2)
    assert Side(Coded("4x64")).sparsity(64) == 0


def test_fractions_keep_the_nearest_multiple_of_8():
    assert [Sparse(f).kept(128) for f in (0.0, 0.5, 0.7, 0.75, 0.8, 0.95)] == [
        128,
        64,
        40,
        32,
        24,
        8,
    ]
    assert [Sparse(f).kept(64) for f in (0.5, 0.7, 0.8)] == [32, 16, 16]
    assert Sparse(0.0).kept(80) == 80
    side = Side(Sparse(0.7))
    assert side.sparsity(128) == 1 - 40 / 128  # the true one
    assert Side(Sparse(19)).sparsity(64) == 1 - 19 / 64
    assert Side(Dense("int4")).sparsity(64) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sparse(0), "keep is 0; must be 1 to the head_dim"),
        (lambda: Sparse(-3), "keep is -3; must be 1 to the head_dim"),
        (lambda: Sparse(1.0), "keep is 1.0; must be a fraction pruned from 0.0 to below 1.0"),
        (lambda: Sparse(float("nan")), "keep is nan; must be a fraction pruned from 0.0 to"),
        (lambda: Sparse(65).format(64), "keep is 65; must be 1 to 64"),
        (lambda: Sparse(8, "int5"), "values is 'int5'; must be one of fp32, fp16, bf16, fp8_e4m3"),
        (lambda: Sparse(8, "fp16", "row"), "scales of fp16 is 'row'; must be one of none"),
        (lambda: Sparse(8, "int4", "group"), "scales of int4 is 'group'; must be one of row, chan"),
        (lambda: Dense("float16"), "dtype is 'float16'; must be one of fp32, fp16"),
        (lambda: Dense("fp8", "channel"), "scales of fp8_e4m3 is 'channel'; must be one of row"),
        (lambda: Dense("int4", "group").format(80), "head_dim is 80; must be a multiple of 32"),
        (lambda: Dense().format(100), "head_dim is 100; must be a multiple of 8 from 8 to 256"),
        (lambda: Side(Dense(), basis="svd"), "basis is 'svd'; must be one of none, pca"),
        (lambda: Side(Sparse(8), policy="best"), "policy is 'best'; must be one of magnitude, "),
        (lambda: Side(Dense(), policy="weighted"), "policy is 'weighted'; must be left out where"),
        (lambda: parse_layout("sparse"), "layout is 'sparse'; must be dense[:type"),
        (lambda: parse_layout("dense:int4:8"), "layout is 'dense:int4:8'; must be dense[:type"),
        (lambda: Sparse(0.999).kept(128), "keep is 0.999, which leaves nothing of 128; must be"),
        (lambda: parse_layout("dense:int4@"), "type is 'int4@'; must have scales after the @"),
        (lambda: parse_layout("sparse:+5"), "keep is '+5'; must be a number of entries or"),
        (lambda: parse_layout("sparse:6_4"), "keep is '6_4'; must be a number of entries or"),
        (lambda: parse_layout("sparse:\u0666\u0664"), "keep is '\u0666\u0664'; must be a number"),
        (lambda: parse_layout("sparse: 64"), "keep is ' 64'; must be a number of entries or"),
        (lambda: parse_layout("sparse:many"), "keep is 'many'; must be a number of entries or"),
        (lambda: parse_layout("ragged:8"), "layout is 'ragged'; must be one of dense, sparse"),
    ],
)  # fmt: skip
def test_bad_input(make, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        make()
    assert str(raised.value).startswith(message)


def test_keep_must_be_a_number():
    for wrong in (24.0, 24.5, True, "24"):
        with pytest.raises(TypeError, match=r"keep is .*; must be an integer"):
            BlockFormat(64, wrong)
    with pytest.raises(TypeError, match=r"head_dim is 64.0; must be an integer"):
        BlockFormat(64.0)
    with pytest.raises(TypeError, match="layout is 'dense'; must be Dense, Sparse or Coded"):
        Side("dense")
    with pytest.raises(TypeError, match="keep is str; must be an int or a float"):
        Sparse("40")
    with pytest.raises(TypeError, match="bits is bool; must be a str or a float"):
        Coded(True)
    with pytest.raises(TypeError, match="keep is bool"):
        Sparse(True)

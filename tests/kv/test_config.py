"""Specs, the position rule and capacity planning."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.kv.config import KVConfig
from gossamer.kv.layouts import Coded, Dense, Side, Sparse
from gossamer.kv.policies import POLICIES
from gossamer.kv.shape import KVShape
from gossamer.ops.kv_block import VALUE_BITS, valid_scales
from gossamer.ops.kv_profile import GROUP_BITS, Profile

LLAMA = KVShape(layers=32, query_heads=32, kv_heads=8, head_dim=128)

MEANINGS = {
    "dense": KVConfig(),
    "dense:int8": KVConfig(Side(Dense("int8")), Side(Dense("int8"))),
    "dense:fp8": KVConfig(Side(Dense("fp8_e4m3")), Side(Dense("fp8_e4m3"))),
    "sparse:k=64,v=40": KVConfig(Side(Sparse(64)), Side(Sparse(40))),
    "sparse:k=64,v=40,values=int8,basis=pca,window=64": KVConfig(
        Side(Sparse(64, "int8"), "pca"), Side(Sparse(40, "int8"), "pca"), window=64
    ),
    "sparse:k=0.5,v=0.7,sink=32,prefill=dense": KVConfig(
        Side(Sparse(0.5)), Side(Sparse(0.7)), sink=32, prefill="dense"
    ),
    "sparse:k=64,v=40,values=int4@channel": KVConfig(
        Side(Sparse(64, "int4", "channel")), Side(Sparse(40, "int4", "channel"))
    ),
    "k=dense:int4@channel,v=sparse:40:int4,v_basis=pca,window=0": KVConfig(
        Side(Dense("int4", "channel")), Side(Sparse(40, "int4"), "pca"), window=0
    ),
    "coded:25%": KVConfig(Side(Coded(25.0)), Side(Coded(25.0)), sink=32),
    "coded:20.5%@none,window=64": KVConfig(
        Side(Coded(20.5, "none")), Side(Coded(20.5, "none")), window=64, sink=32
    ),
    "coded:4x64,sink=0": KVConfig(Side(Coded("4x64")), Side(Coded("4x64")), sink=0),
    "k=coded:8x8+4x40+2x16,v=coded:4x32+2x32@row": KVConfig(
        Side(Coded("8x8+4x40+2x16")), Side(Coded("4x32+2x32", "row")), sink=32
    ),
    "k=dense:int4@channel,v=coded:25%": KVConfig(
        Side(Dense("int4", "channel")), Side(Coded(25.0)), sink=32
    ),
    "k=coded:25%,v=sparse:40:int4,v_basis=pca,sink=64": KVConfig(
        Side(Coded(25.0)), Side(Sparse(40, "int4"), "pca"), sink=64
    ),
    "sparse:k=64,v=16,k_policy=weighted": KVConfig(
        Side(Sparse(64), policy="weighted"), Side(Sparse(16))
    ),
}


@pytest.mark.parametrize("spec", MEANINGS)
def test_what_a_spec_means(spec):
    assert KVConfig.parse(spec) == MEANINGS[spec]
    assert str(MEANINGS[spec]) == spec.replace("fp8", "fp8_e4m3")


def test_other_ways_to_say_it():
    assert KVConfig.parse("sparse:v=40,window=64,k=64") == KVConfig.parse(
        "sparse:k=64,v=40,window=64"
    )
    assert KVConfig.parse("sparse:k=8,v=8,values=int4,scales=channel") == KVConfig.parse(
        "k=sparse:8:int4@channel,v=sparse:8:int4@channel"
    )
    assert KVConfig.parse("k=dense,v=dense") == KVConfig.parse(" dense ")
    assert KVConfig.parse("coded:25.0%,sink=32") == KVConfig.parse("k=coded:25%,v=coded:25%")
    assert KVConfig.parse("coded:4x8+4x56@none") == KVConfig.parse("coded:4x64")
    assert KVConfig.parse("coded:25%@row") == KVConfig.parse("coded:25%")


def test_a_coded_cache_has_a_dense_first_block_unless_it_says_otherwise():
    coded = Side(Coded("4x64"))
    assert [KVConfig(coded).sink, KVConfig(v=coded).sink, KVConfig().sink] == [32, 32, 0]
    assert KVConfig.parse("coded:4x64,sink=0").sink == 0
    assert str(KVConfig(coded, coded, sink=0)) == "coded:4x64,sink=0"
    assert str(KVConfig(coded, coded)) == "coded:4x64"


def test_percentages_have_no_bytes():
    config = KVConfig.parse("k=coded:25%,v=coded:4x128")
    assert config.calibrated
    assert not config.resolved
    with pytest.raises(ValueError, match=r"k: bits are 25%, of which a calibration makes bits by"):
        config.block_bytes(LLAMA)
    with pytest.raises(ValueError, match="which needs a calibration to pick its bits"):
        config.resolve(None)
    named = KVConfig.parse("coded:4x128")
    assert named.resolved
    assert named.resolve(None) is named
    assert named.share(LLAMA) == 0.25
    with pytest.raises(ValueError, match=r"k: values is '4x64', which is 64 channels; must add up"):
        KVConfig.parse("coded:4x64").block_bytes(LLAMA)


@st.composite
def coded(draw: st.DrawFn) -> Coded:
    if draw(st.booleans()):
        percent = st.floats(10, 52) | st.integers(10, 52).map(float)
        return Coded(draw(percent), draw(st.sampled_from(["none", "row"])))
    bits = draw(st.lists(st.sampled_from(GROUP_BITS), min_size=16, max_size=16).filter(any))
    return Coded(str(Profile(tuple(bits))), draw(st.sampled_from(["none", "row"])))


@st.composite
def sides(draw: st.DrawFn, name: str) -> Side:
    if draw(st.booleans()):
        return Side(draw(coded()))
    dense = draw(st.booleans())
    values = draw(st.sampled_from(sorted(VALUE_BITS)))
    scales = draw(st.sampled_from(valid_scales(values, dense)))
    basis = draw(st.sampled_from(["none", "pca"]))
    if dense:
        return Side(Dense(values, scales), basis)
    policy = draw(st.sampled_from([p for p, c in POLICIES.items() if name in c.sides]))
    keep = draw(st.integers(1, 128) | st.floats(0, 0.8))
    return Side(Sparse(keep, values, scales), basis, policy)


@given(
    k=sides("k"),
    v=sides("v"),
    window=st.integers(0, 8).map(lambda n: 32 * n),
    sink=st.integers(0, 8).map(lambda n: 32 * n),
    prefill=st.sampled_from(["blocks", "dense"]),
)
def test_every_config_survives_a_round_trip(k, v, window, sink, prefill):
    config = KVConfig(k, v, window, sink, prefill)
    assert KVConfig.parse(str(config)) == config
    assert not config.resolved or config.block_bytes(LLAMA) > 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "k= is missing; must be given"),
        ("sparse", "'sparse' is not key=value"),
        ("sparse:k=64", "v= is missing; must be given"),
        ("sparse:k=0,v=8", "keep is 0; must be 1 to the head_dim"),
        ("sparse:k=64,v=40,values=int5", "values is 'int5'; must be one of fp32, fp16,"),
        ("sparse:k=64,v=40,size=3", "key is 'size'; must be one of k, v, basis,"),
        ("sparse:k=64,v=40,k=3", "key 'k' is there twice; must be there once"),
        ("sparse:k=64,v=40,window=40", "window is 40; must be a multiple of 32 from 0"),
        ("sparse:k=64,v=40,window=064", "window is '064'; must be a multiple of 32 from 0"),
        ("sparse:k=64,v=40,window=\u0663\u0662", "window is '\u0663\u0662'; must be"),
        (f"sparse:k=64,v=40,window={32 * 10**30}", f"window is {32 * 10**30}; must be a mult"),
        ("sparse:k=64,v=40,values=int4@row,scales=row", "scales are there twice, after @ and as"),
        ("sparse:k=64,,v=40", "'' is not key=value"),
        ("sparse:k=64,v=40,", "'' is not key=value"),
        ("sparse:k= 64,v=40", "keep is ' 64'; must be a number of entries or a fraction pruned"),
        ("sparse:k=64,v=40,window=-32", "window is '-32'; must be a multiple of 32 from 0"),
        ("sparse:k=64,v=40,sink=x", "sink is 'x'; must be a multiple of 32 from 0"),
        ("sparse:k=64,v=40,basis=svd", "basis is 'svd'; must be one of none, pca"),
        ("sparse:k=64,v=40,v_policy=weighted", "v_policy is 'weighted'; must be one of magnitude"),
        ("sparse:k=64,v=40,prefill=no", "prefill is 'no'; must be one of blocks, dense"),
        ("sparse:k=64,v=40,window", "'window' is not key=value"),
        ("dense:int8,values=int8", "key is 'values'; must be one of basis,"),
        ("dense:int9", "dtype is 'int9'; must be one of fp32, fp16,"),
        ("dense,k=8", "key is 'k'; must be one of basis,"),
        ("k=sparse:40", "v= is missing; must be given"),
        ("k=40,v=40", "layout is '40'; must be one of dense, sparse"),
        ("coded", "'coded' is not key=value; specs begin with dense, coded:25%,"),
        ("coded:", "bits are ''; must be like 8x16+4x40+2x8"),
        ("coded:25", "bits are '25'; must be like 8x16+4x40+2x8"),
        ("coded:9%", "bits are 9% of float16's; must be 10% to 52%"),
        ("coded:52.5%", "bits are 52.5% of float16's; must be 10% to 52%"),
        ("coded:1e1%", "bits are '1e1%'; must be a percentage like 25%, or like 8x8+4x56"),
        ("coded:25%@channel", "scales of coded rows is 'channel'; must be one of none, row"),
        ("coded:25%:int4", "layout is 'coded:25%:int4'; must be dense[:type"),
        ("coded:5x64", "'5x64' has 5 bits; must be 8, 4, 3, 2 or 0"),
        ("coded:4x60+2x4", "'4x60' has 60 channels; must be a multiple of 8"),
        ("coded:0x64", "bits are '0x64'; must be more than 0 somewhere"),
        ("coded:25%,basis=pca", "basis is 'pca'; must be left out for coded rows, which have th"),
        ("coded:25%,k_policy=gradient", "policy is 'gradient'; must be left out where nothing"),
        ("coded:25%,values=int4", "key is 'values'; must be one of basis,"),
        ("k=dense,v=dense,values=int8", "key is 'values'; must be one of k, v,"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        KVConfig.parse(spec)
    assert str(raised.value).startswith(f"KV spec {spec!r}: {message}")


def test_what_a_query_sees_depends_on_positions_alone():
    """Its own block, window / 32 blocks before it and the sink are dense."""
    config = KVConfig.parse("sparse:k=64,v=40,window=64,sink=32")
    positions = torch.arange(256)
    dense = config.sees_dense(positions[:, None], positions)
    for i in (0, 31, 32, 95, 96, 200, 255):
        for j in range(256):
            block, own = j // 32, i // 32
            assert dense[i, j].item() == (block >= own - 2 or block == 0)


def test_bytes_of_a_model():
    config = KVConfig.parse("sparse:k=64,v=40")
    per_token = (144 + 96) * 8 * 32
    assert config.bytes_per_token(LLAMA) == per_token
    assert config.bytes_per_page(LLAMA) == 32 * per_token
    assert config.bytes_per_page(LLAMA, 128) == 128 * per_token
    assert config.share(LLAMA) == (144 + 96) / 512
    assert KVConfig().share(LLAMA) == 1
    with pytest.raises(ValueError, match="page_tokens is 48; must be a multiple of 32"):
        config.bytes_per_page(LLAMA, 48)


def test_tokens_that_fit():
    dense, sparse = KVConfig(), KVConfig.parse("sparse:k=64,v=40,window=32")
    block = 32 * 512 * 8 * 32
    assert dense.tokens_that_fit(10 * block, LLAMA) == 320
    assert dense.tokens_that_fit(10 * block - 1, LLAMA) == 288
    # Two dense blocks, then blocks of 240 / 512 the size.
    assert sparse.tokens_that_fit(10 * block, LLAMA) == 32 * (2 + int(8 * 512 / 240))
    assert sparse.tokens_that_fit(10 * block, LLAMA, sequences=2) == 2 * 32 * (
        2 + int(3 * 512 / 240)
    )
    assert sparse.tokens_that_fit(block, LLAMA) == 32
    assert sparse.tokens_that_fit(0, LLAMA) == 0
    with pytest.raises(ValueError, match="memory is -1 and sequences 1; must be integers"):
        sparse.tokens_that_fit(-1, LLAMA)
    with pytest.raises(ValueError, match=r"memory is 1000.0 and sequences 1; must be integers"):
        sparse.tokens_that_fit(1e3, LLAMA)


def test_errors_of_a_size_name_the_side():
    with pytest.raises(ValueError, match="v: keep is 200; must be 1 to 128"):
        KVConfig.parse("sparse:k=64,v=200").block_bytes(LLAMA)
    with pytest.raises(ValueError, match=r"window is 64.0; must be a multiple of 32"):
        KVConfig(window=64.0)


@given(tokens=st.integers(0, 5000), sequences=st.integers(1, 5), window=st.integers(0, 4))
def test_what_fits_does_fit(tokens, sequences, window):
    """Never more bytes than there are, and one more block per sequence would be too many."""
    config = KVConfig.parse(f"sparse:k=64,v=40,window={32 * window}")
    memory = tokens * 100_000
    fits = config.tokens_that_fit(memory, LLAMA, sequences)

    def needed(blocks: int) -> int:
        near = min(blocks, 1 + window)
        each = near * KVConfig().block_bytes(LLAMA) + (blocks - near) * config.block_bytes(LLAMA)
        return sequences * each

    blocks = fits // (32 * sequences)
    assert needed(blocks) <= memory < needed(blocks + 1)

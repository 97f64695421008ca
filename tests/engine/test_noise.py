"""The sampler's noise against the laws of chance."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.engine.noise import gumbel, uniform
from tests.engine.chance import surprise


def longs(*values):
    return torch.tensor(values, dtype=torch.int64)


SLICES = {
    "tokens": lambda n: uniform(longs(7), longs(3), n)[0],
    "positions": lambda n: uniform(torch.full((n,), 7), torch.arange(n), 1)[:, 0],
    "seeds": lambda n: uniform(torch.arange(n), torch.full((n,), 3), 1)[:, 0],
    "high seeds": lambda n: uniform(torch.arange(n) << 40, torch.full((n,), 3), 1)[:, 0],
    "negative seeds": lambda n: uniform(-torch.arange(n), torch.full((n,), 3), 1)[:, 0],
    "all": lambda n: uniform(torch.arange(64), torch.arange(64), n // 64).flatten(),
}


@pytest.mark.parametrize("name", SLICES)
def test_noise_is_uniform_and_independent_of_what_is_next_to_it(name):
    u = SLICES[name](1 << 18)
    assert u.dtype is torch.float32
    assert u.min() > 0
    assert u.max() < 1
    assert abs(surprise(torch.histc(u, 256, 0, 1), torch.full((256,), u.numel() / 256))) < 5
    pairs = (u[:-1] * 16).long() * 16 + (u[1:] * 16).long()  # neighbours, on a 16 x 16 board
    counts = pairs[::2].bincount(minlength=256)
    assert abs(surprise(counts, torch.full((256,), counts.sum() / 256))) < 5
    low_bits = (u.double() * 2**14 % 1 * 64).long().bincount(minlength=64)
    assert abs(surprise(low_bits, torch.full((64,), u.numel() / 64))) < 5


def test_rows_are_uncorrelated():
    n = 1 << 14
    seeds = longs(0, 1, 2, 0, 0, 1, -1, 1 << 62)
    positions = longs(0, 0, 0, 1, 2, 1, 0, 0)
    u = uniform(seeds, positions, n)
    correlation = torch.corrcoef(u) - torch.eye(8)
    assert correlation.abs().max() < 5.5 / math.sqrt(n)
    shifted = torch.corrcoef(torch.cat([u[:, 1:], u[:, :-1]])) - torch.eye(16)
    assert shifted.abs().max() < 5.5 / math.sqrt(n)


def test_seed_and_position_are_not_interchangeable():
    seeds, positions = torch.meshgrid(torch.arange(-32, 32), torch.arange(64), indexing="ij")
    u = uniform(seeds.flatten(), positions.flatten(), 2)
    assert len(u.unique(dim=0)) == 64 * 64


def mixed(x):
    """splitmix64's finaliser in Python's integers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(1, 9))
def test_noise_is_a_function_of_its_arguments(seed, position, vocab):
    golden = 0x9E3779B97F4A7C15
    key = mixed(mixed((seed + golden) % 2**64) ^ mixed((position + 1) * golden % 2**64))
    bits = [mixed(key ^ mixed((t + 1) * golden % 2**64)) % 2**63 | 1 for t in range(vocab)]
    expected = torch.tensor(bits).float() / 2**63
    assert torch.equal(
        uniform(longs(seed), longs(position), vocab)[0], expected.clamp(max=1 - 2**-24)
    )


def test_noise_stays_as_it_is():
    """What a seed samples must not change between versions without notice."""
    bits = uniform(longs(0, -5), longs(0, 9), 3).view(torch.int32).tolist()
    assert bits == [[1058030340, 1058727932, 1064734425], [1051642614, 1058433745, 1060455124]]


@pytest.mark.gpu
def test_noise_has_the_same_bits_on_the_gpu():
    seeds, positions = torch.randint(-(1 << 62), 1 << 62, (16,)), torch.randint(0, 1 << 40, (16,))
    on_gpu = uniform(seeds.cuda(), positions.cuda(), 50001).cpu()
    assert torch.equal(uniform(seeds, positions, 50001), on_gpu)


def test_bad_noise_arguments():
    with pytest.raises(TypeError, match="must be int64"):
        uniform(torch.zeros(2), longs(1, 2), 3)
    with pytest.raises(ValueError, match=r"must both be \[rows\]"):
        uniform(longs(1), longs(1, 2), 3)


def test_gumbel_noise_has_the_right_moments():
    g = gumbel(torch.arange(64), torch.zeros(64, dtype=torch.int64), 4096).double()
    assert g.isfinite().all()
    assert abs(g.mean() - 0.5772156649) < 5 * math.pi / math.sqrt(6 * g.numel())
    assert abs(g.var() - math.pi**2 / 6) < 0.03

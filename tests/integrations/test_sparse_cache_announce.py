"""A SparseCache says how it decodes once something is compressed, and warns once of a slow one."""

import logging

import pytest
import torch

from gossamer.integrations.transformers import SparseCache, use_gossamer
from gossamer.kv import announce
from gossamer.kv.speed import DecodeSpeed
from tests.integrations.generating import endless_tiny, generated

SLOW = DecodeSpeed("triton", False, 910.0, 254.0, "8 x 8,192 tokens", "no such kernel")
LONG = [[i % 90 + 5 for i in range(70)]]  # the first block is behind the window


@pytest.fixture(scope="module")
def model():
    return endless_tiny("llama")


@pytest.fixture
def asked(monkeypatch):
    """A device on which every cache is slow: what was asked of it."""
    calls = []

    def slow(config, shape, dtype, device, *, measure=True):
        calls.append((str(config), shape, dtype, torch.device(device), measure))
        return SLOW

    monkeypatch.setattr(announce, "decode_speed", slow)
    return calls


def test_one_warning_for_all_caches_of_a_kind(model, said, asked):
    for _ in range(2):
        with use_gossamer(model, "dense:int4"):
            generated(model, LONG, 3)
    (warning,) = said(logging.WARNING)
    for word in ("dense:int4 is slow on cpu", "triton", "910 us", "254", "0.28x", "no such kernel"):
        assert word in warning
    shape = SparseCache(model.config).shape
    assert len(asked) == 2  # once for each cache, not for each token or layer
    assert set(asked) == {("dense:int4", shape, torch.float32, torch.device("cpu"), False)}
    with use_gossamer(model, "dense:int8"):
        generated(model, LONG, 3)
    assert len(said(logging.WARNING)) == 2


def test_nothing_is_asked_before_a_block_is_compressed(model, said, asked):
    with use_gossamer(model, "dense:int4"):
        generated(model, [row[:40] for row in LONG], 3)
        assert asked == []
        generated(model, [row[:60] for row in LONG], 8)  # in the middle of an answer
    assert len(asked) == 1
    assert len(said(logging.WARNING)) == 1


def test_a_cache_from_a_file_says_it_too(model, said, asked, tmp_path):
    cache = SparseCache(model.config, "dense:int4")
    with use_gossamer(model, "dense:int4"), torch.inference_mode():
        model(torch.tensor(LONG), past_key_values=cache)
        cache.save(tmp_path / "cache")
        asked.clear()
        loaded = SparseCache.load(tmp_path / "cache", model.config)
        model(torch.tensor([[7]]), past_key_values=loaded)
    assert len(asked) == 1


@pytest.mark.parametrize("measured", [True, False])
def test_what_is_measured(model, said, monkeypatch, measured):
    """On a CPU, one line with figures; toys, like this one, are not measured."""
    if measured:
        monkeypatch.setattr(announce, "LEAST_HEAD_DIM", 8)
    with use_gossamer(model, "dense:int8"):
        generated(model, LONG, 3)
    (line,) = said(logging.INFO)
    assert line.startswith("KV cache dense:int8: ")
    assert ("us a layer at" in line) == measured

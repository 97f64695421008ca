"""What the log says of a cache at an engine's start: one line, and one warning of a slow one."""

import logging

import pytest
import torch

from gossamer.engine import LLM, announce
from gossamer.kv import KVConfig, KVShape
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.speed import DecodeSpeed

SHAPE = KVShape(layers=2, query_heads=4, kv_heads=2, head_dim=64)
FAST = DecodeSpeed("cuda codes", tuned=True, us=84.0, dense_us=254.0, point="8 x 8,192 tokens")
SLOW = DecodeSpeed("triton", False, 910.0, 254.0, "8 x 8,192 tokens", "no such kernel")


@pytest.fixture
def said(caplog):
    announce._warn.cache_clear()
    caplog.set_level(logging.INFO, "gossamer.engine")

    def lines(level):
        return [r.getMessage() for r in caplog.records if r.levelno == level]

    yield lines
    announce._warn.cache_clear()


def start(monkeypatch, speed, kv="dense:int4"):
    monkeypatch.setattr(announce, "decode_speed", lambda *_, **__: speed)
    spec = CacheSpec(KVConfig.parse(kv), SHAPE, torch.float16, torch.device("cpu"))
    return announce.measure_and_log(spec)


def test_one_line_with_cache_bytes_kernel_and_factor(monkeypatch, said):
    assert start(monkeypatch, FAST) is FAST
    (line,) = said(logging.INFO)
    for word in ("dense:int4", "26.6% of dense float16", "cuda codes", "84 us", "254", "3.02x"):
        assert word in line
    assert said(logging.WARNING) == []


def test_one_warning_with_both_figures(monkeypatch, said):
    for _ in range(3):  # engines with the same cache
        start(monkeypatch, SLOW)
    (warning,) = said(logging.WARNING)
    for word in ("dense:int4 is slow on cpu", "triton", "910 us", "254", "0.28x", "no such kernel"):
        assert word in warning
    start(monkeypatch, SLOW, "dense:int8")
    assert len(said(logging.WARNING)) == 2


def test_a_slow_kernel_that_was_not_measured(monkeypatch, said):
    start(monkeypatch, DecodeSpeed("reference", tuned=False, reason="_C.so is not built"))
    (warning,) = said(logging.WARNING)
    assert warning.endswith("reference, not measured: _C.so is not built")


@pytest.mark.parametrize("measured", [True, False])
def test_an_engine_says_it(llm, said, measured, monkeypatch):
    """On a CPU: what `built` has is what the log says. Toys, like this one, are not measured."""
    if measured:
        monkeypatch.setattr(announce, "LEAST_HEAD_DIM", 8)
    options = {"kv": "dense:int8", "device": "cpu", "kv_memory": "16MiB"}
    with LLM(llm.engine.config.model, **options) as started:
        speed = started.engine.built.speed
    assert speed.measured == measured
    assert speed.kernel.startswith("cpu ")
    (line,) = said(logging.INFO)
    assert line.startswith("KV cache dense:int8: ")
    assert line.endswith(str(speed))

"""What the log says of a cache: one line, and one warning of a slow one."""

import logging

import torch

from gossamer.kv import KVConfig, KVShape, announce
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.speed import DecodeSpeed

SHAPE = KVShape(layers=2, query_heads=4, kv_heads=2, head_dim=64)
FAST = DecodeSpeed("cuda codes", tuned=True, us=84.0, dense_us=254.0, point="8 x 8,192 tokens")
SLOW = DecodeSpeed("triton", False, 910.0, 254.0, "8 x 8,192 tokens", "no such kernel")


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
    for _ in range(3):  # engines or models with the same cache
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

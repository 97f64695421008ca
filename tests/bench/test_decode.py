"""The benchmark of decode attention: its points, its bytes, its peers and its oracle."""

import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks.peers import decode as decode_peers
from benchmarks.suites.decode_attention import captured, oracle
from benchmarks.suites.decode_cache import Args, DecodeCase, Stored
from benchmarks.suites.decode_cases import (
    NINE_SHAPES,
    SWEEP,
    SWEEP_CONTEXTS,
    cpu_cases,
    cuda_cases,
    small,
    spread_lengths,
)
from gossamer.bench.suite import PeerUnavailableError, tensor_bytes
from gossamer.ops import OPS

EVERY_KIND = list(dict.fromkeys(small(c) for c in (*cuda_cases(), *cpu_cases())))


@pytest.mark.parametrize("cases", [cuda_cases, cpu_cases])
def test_points_are_measured_once(cases):
    points = Counter((c.shape, c.dtype, c.variant, c.backends) for c in cases())
    assert set(points.values()) == {1}


def test_every_shape_has_peers():
    """Other than mixed lengths, which are compared with equal ones."""
    for cases in (list(cuda_cases()), list(cpu_cases())):
        have = {(c.shape, c.dtype) for c in cases if c.has_peers}
        assert have >= {(c.shape, c.dtype) for c in cases if "lengths" not in c.note}


def test_the_sweep_is_complete():
    cases = set(cuda_cases())
    wanted = {DecodeCase(8, 8, n, Stored(keep)) for n in SWEEP_CONTEXTS for keep in SWEEP}
    assert wanted <= cases
    assert {(8, 8, n) for n in SWEEP_CONTEXTS} <= set(NINE_SHAPES)


def test_mixed_lengths_hold_as_many_bytes_as_equal_ones():
    mixed = [c for c in cuda_cases() if c.lengths]
    assert len(mixed) == 2
    for case in mixed:
        equal = replace(case, lengths=(), note="lengths=equal")
        assert equal in cuda_cases()
        assert case.bytes == equal.bytes


def test_the_spread_is_log_uniform():
    lengths = sorted(spread_lengths())
    assert lengths[0] >= 256
    assert lengths[-1] <= 32_768
    assert 2_000 < lengths[32] < 4_000  # the geometric mean of the ends is 2,896


@pytest.mark.parametrize("case", [c for c in EVERY_KIND if not c.window], ids=str)
def test_bytes_are_those_of_the_tensors(case):
    args = case.args("cpu")
    if case.page_size == 32:  # no page is half empty
        assert case.bytes == tensor_bytes(args.k_blocks, args.v_blocks, args.q, args.q)
    if case.has_peers:
        assert case.bytes == case.dense_bytes


def test_bytes_with_a_window_count_its_blocks_as_dense():
    case = DecodeCase(1, 1, 96, Stored(40), heads=1, window=32)
    sparse, dense, ends = (16 + 80) * 32, 256 * 32, 2 * 256
    assert case.bytes == 2 * (sparse + 2 * dense) + ends
    assert case.dense_bytes == 2 * 3 * dense + ends


@pytest.mark.parametrize("case", EVERY_KIND, ids=str)
def test_the_oracle_is_the_reference_in_float64(case):
    args = case.args("cpu")
    got = oracle(*args)
    out, _ = OPS["decode_attention"].reference(args.q.float(), *args[1:])
    torch.testing.assert_close(got.float(), out, rtol=1e-5, atol=1e-5)


def _paged_decode(workspace, layout, use_tensor_cores):
    """What FlashInfer's wrapper does, of the part of its interface that the peer uses."""
    plan = {}

    def remember(indptr, indices, last, *sizes, **options):
        plan.update(indptr=indptr, indices=indices, last=last, sizes=sizes, **options)

    def run(q, cache):
        pages = cache[plan["indices"].long()].chunk(len(q))
        k, v = (torch.stack([p[:, i].flatten(0, 1) for p in pages]) for i in (0, 1))
        k, v = (x.transpose(1, 2).repeat_interleave(q.shape[1] // x.shape[2], 1) for x in (k, v))
        scores = torch.einsum("bhd,bhtd->bht", q, k) * plan["sm_scale"]
        return torch.einsum("bht,bhtd->bhd", scores.softmax(-1), v)

    assert layout == "NHD"
    return SimpleNamespace(plan=remember, run=run)


def test_flashinfer_gets_the_cache_in_its_own_pages(monkeypatch):
    module = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=_paged_decode)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(decode_peers, "FLASHINFER_WORKSPACE", 16)
    args = DecodeCase(2, 2, 96, heads=8, dtype=torch.float32).args("cpu")
    out = decode_peers.flashinfer(tensor_cores=True)(*args)()
    torch.testing.assert_close(out, oracle(*args).float())


def test_a_broken_flashinfer_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
    args = DecodeCase(1, 2, 32, heads=2).args("cpu")
    with pytest.raises(PeerUnavailableError, match="BatchDecode"):
        decode_peers.flashinfer(tensor_cores=False)(*args)


def test_pages_are_shuffled_and_lengths_end_in_nothing():
    case = DecodeCase(3, 1, 64, heads=1, lengths=(96, 32, 64))
    table = case.args("cpu").page_table
    assert (table >= 0).sum(1).tolist() == [3, 1, 2]
    assert sorted(table[table >= 0].tolist()) == list(range(6))
    ordered = replace(case, shuffled=False).args("cpu").page_table
    assert ordered.tolist() == [[0, 1, 2], [3, -1, -1], [4, 5, -1]]


@pytest.mark.gpu
def test_a_graph_is_replayed():
    args = DecodeCase(2, 2, 96, Stored(40), heads=8).args("cuda")
    op = OPS["decode_attention"]
    with torch.inference_mode():
        replay = captured(lambda *a: op(*a)[0], *args)
        first = replay().clone()
        args.q.neg_()
        second = replay()
    assert not torch.equal(first, second)
    want = oracle(*Args(*args))
    assert (second - want).norm() <= 2e-3 * want.norm()


@pytest.mark.gpu
def test_peers_on_a_gpu_are_right():
    case = DecodeCase(2, 2, 96, heads=8)
    args = case.args("cuda")
    want = oracle(*args)
    for name in ("sdpa_cudnn", "sdpa_flash"):
        out = decode_peers.peers("cuda", case.dtype, case.head_dim)[name](*args)()
        assert (out - want).norm() <= 2e-3 * want.norm()

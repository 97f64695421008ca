"""Requests as drawn, bytes as counted, valid synthetic contexts, generations that stop."""

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch

from gossamer.engine import SamplingParams
from gossamer.kv import KVConfig, KVShape
from gossamer.ops import kv_unpack
from gossamer.workloads import bench
from gossamer.workloads.generation import timed_generation
from gossamer.workloads.loading import loaded
from gossamer.workloads.measuring import equal_requests, measure
from gossamer.workloads.requests import RequestMix
from gossamer.workloads.sizes import kv_bytes_read, memory_for, sequences_that_fit, weight_bytes
from gossamer.workloads.synthetic import fill

SPARSE = "sparse:k=16,v=16"
SHAPE = KVShape(layers=3, query_heads=4, kv_heads=2, head_dim=32)


def test_requests_are_as_drawn():
    mix = RequestMix(requests=200, inputs=(3, 5), outputs=(7, 9))
    requests = mix.draw(50, seed=1)
    assert requests == mix.draw(50, seed=1)
    assert requests != mix.draw(50, seed=2)
    assert {len(r.ids) for r in requests} == {3, 4, 5}
    assert {r.output for r in requests} == {7, 8, 9}
    assert {token for r in requests for token in r.ids} == set(range(50))


@pytest.mark.parametrize("kv", ["dense", "dense:int8", SPARSE, f"{SPARSE},window=64,sink=32"])
@pytest.mark.parametrize("tokens", [20, 130, 500])
def test_what_fits_runs_without_preemption(words, kv, tokens):
    config = KVConfig.of(kv, torch.float32)
    memory = memory_for(config, SHAPE, torch.float32, tokens, 5)
    assert sequences_that_fit(config, SHAPE, torch.float32, tokens, memory) >= 5
    more = {"max_num_seqs": 6, "max_model_len": tokens, "prefix_caching": False}
    with loaded(str(words), kv=kv, kv_memory=memory, **more) as llm:
        fill(llm)
        found = measure(llm, equal_requests(97, 5, tokens - 10, 10))
    assert found.preemptions == 0
    assert [len(tokens) for tokens in found.tokens] == [10] * 5


@pytest.mark.parametrize("measured", ["throughput", "latency"])
def test_an_engine_is_gone_when_the_next_one_is_loaded(words, monkeypatch, measured):
    """Two caches of 90 GB each do not fit into one GPU."""
    config = bench.BenchConfig(str(words), ["dense", SPARSE], device="cpu", kv_memory="4MB")
    pools, load = [], bench.loaded

    @contextmanager
    def watched(*args, **options):
        gc.collect()
        assert all(pool() is None for pool in pools)
        with load(*args, **options) as llm:
            pools.append(weakref.ref(llm.engine.built.runner.cache))
            yield llm
            del llm

    monkeypatch.setattr(bench, "loaded", watched)
    if measured == "throughput":
        bench.throughput(config, bench.Workload(requests=2, inputs=(3, 5), outputs=(2, 3)))
    else:
        bench.latency(config, (1,), (8,), 3)
    assert len(pools) == 2


@pytest.mark.parametrize("kv", ["dense", SPARSE])
def test_bytes_of_a_step(words, kv):
    with loaded(str(words), kv=kv, kv_memory="4MB") as llm:
        weights = weight_bytes(llm.engine)
        everything = sum(p.numel() for p in [llm.engine.built.runner.decoder.weights.embedding])
        per_token = 3 * 2 * 2 * 32 * 4  # layers, K and V, heads, head_dim, bytes
        assert kv_bytes_read(llm.engine, 10) == 10 * per_token
        share = kv_bytes_read(llm.engine, 512) / (512 * per_token)
    assert share == 1 if kv == "dense" else 0.3 < share < 0.5
    layer = 64 * (4 + 2 * 2) * 32 + 4 * 32 * 64 + 3 * 64 * 96 + 2 * 64
    assert weights == 4 * (3 * layer + 64 + everything)


def test_filled_pages_are_valid_blocks(words):
    with loaded(str(words), kv=SPARSE, kv_memory="4MB") as llm:
        fill(llm)
        cache = llm.engine.built.runner.cache
        last = torch.arange(len(cache.pools["k"]) * 32 - 32, len(cache.pools["k"]) * 32)
        for name, side in (("k", cache.spec.config.k), ("v", cache.spec.config.v)):
            fmt = side.format(cache.spec.shape.head_dim)
            rows = kv_unpack(cache.pools[name].flatten(1, 2), last, fmt, torch.float32)
            assert ((rows != 0).sum(-1) == 16).all()
            assert 1 < rows[rows != 0].std() < 2


def test_a_stop_between_parts_of_a_prompt(words):
    """Ctrl-C need not wait for the first token of a long prompt."""
    small = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "kv_memory": "4MB"}
    with loaded(str(words), **small) as llm:
        found = timed_generation(llm, [[5] * 200], SamplingParams(), stop=lambda: True)
        assert not llm.engine.busy
    assert found.stopped
    assert found.kv_bytes > 0
    (output,) = found.outputs[0].outputs
    assert (output.finish_reason, output.token_ids) == ("abort", [])

"""Prompts of a step share one call of attention where that is one kernel: outputs are the same.

It is one on a GPU; here it is taken for one, and computes each sequence by itself.
"""

import pytest
import torch

from gossamer.attention.varlen import Segments
from gossamer.engine import SamplingParams
from gossamer.kv.paged_cache import Packing, PagedCache
from tests.engine.serving import assert_empty, cpu_llm, record
from tests.models.tiny import tiny_directory

LENGTHS = (1, 40, 3, 31, 90, 200, 64)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("tiny")
    tiny_directory("llama", path, head_dim=32)
    return path


def count(plan):
    """Sequences of a call."""
    return len(plan.q_lens) if isinstance(plan, Segments) else len(plan.sequences)


def logits_of(directory, kv, budget):
    """All that is sampled from, by prompt and position, of prompts that share a prefix."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(3, 90, (max(LENGTHS),), generator=generator).tolist()
    prompts = [shared[: n // 2] + [5 + i] * (n - n // 2) for i, n in enumerate(LENGTHS)]
    with cpu_llm(directory, kv=kv, max_num_batched_tokens=budget) as llm:
        seen = record(llm)
        for half in (prompts[:3], prompts[3:]):  # the second finds prefixes of the first
            llm.generate(half, GREEDY)
        assert_empty(llm)
        return {(name, at): row for name, rows in seen.items() for at, row in rows.items()}


# With a window of 128 a prompt sees all of itself dense up to there, and then no more.
@pytest.mark.parametrize("kv", ["dense", "sparse:k=8,v=8,window=128", "sparse:k=8,v=8,sink=32"])
@pytest.mark.parametrize("budget", [64, 512])
@pytest.mark.parametrize("packing", [Packing.CAUSAL, Packing.RULE])
def test_same_logits(directory, monkeypatch, packing, kv, budget):
    expected = logits_of(directory, kv, budget)
    packed, attend = [], PagedCache._packed

    def watched(self, layer, q, k, v, chunks, *rest):
        packed.append((count(chunks.plan), chunks.past is not None, chunks.far is not None))
        return attend(self, layer, q, k, v, chunks, *rest)

    monkeypatch.setattr(PagedCache, "packing", packing)
    monkeypatch.setattr(PagedCache, "_packed", watched)
    got = logits_of(directory, kv, budget)
    assert got.keys() == expected.keys()
    worst = max((got[at] - expected[at]).abs().max() for at in got)
    assert worst < 1e-4
    counts, past, far = zip(*packed, strict=True)
    assert any(far) == (packing is Packing.RULE and kv != "dense")
    if kv == "dense" or packing is Packing.RULE:
        assert max(counts) > 1
        assert budget == 512 or any(past)

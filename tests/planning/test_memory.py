"""What fits, against what the engine had."""

from dataclasses import replace

import pytest

from gossamer.bench import read_records
from gossamer.bench.suite import RESULTS
from gossamer.planning.gpu import DataSheet, load_gpu
from gossamer.planning.memory import Limits, kv_memory, sequence_bytes, sequences_that_fit
from gossamer.planning.step import StepModel
from tests.planning.given import BF16, CODED, config, kv, step_model


def test_as_many_sequences_as_the_engine_had_in_40_gb():
    """`engine_throughput`: as many as fit run at a time."""
    found = read_records(RESULTS / "nvidia-h200/engine_throughput.jsonl")
    assert len(found) == 2
    for record in found:
        spec = record.variant.split(", ")[1]
        sequences, context = record.shape
        limits = Limits(sequences + 1, kv_memory=40_000_000_000, prefix_caching=False)
        assert sequences_that_fit(step_model(spec), limits, context + 64) == sequences


def test_bytes_of_a_sequence():
    assert sequence_bytes(step_model(), 8192) == 8192 * 131072
    stored, dense = 8192 - 3 * 32, 3 * 32  # its own block, the window and the sink
    expected = stored * 29696 + dense * 131072
    assert sequence_bytes(step_model(CODED), 8192) == expected
    assert sequence_bytes(step_model(ranks=4), 8192) == 8192 * 131072


def test_the_cache_gets_what_weights_and_steps_leave():
    model, limits = step_model(), Limits()
    left = kv_memory(model, limits)
    assert 0.75 * (141e9 - 16e9) < left < 0.95 * (141e9 - 16e9)
    assert kv_memory(model, Limits(max_num_batched_tokens=16384)) < left
    assert kv_memory(step_model(ranks=2), limits) > left
    assert kv_memory(step_model(ranks=2), Limits(kv_memory=10**9)) == 5 * 10**8


def test_no_room():
    with pytest.raises(ValueError, match=r"with 141.1 GB of weights on each NVIDIA H200"):
        kv_memory(StepModel(load_gpu("h200"), config("llama-3-70b"), kv("dense"), BF16), Limits())
    whole = load_gpu("h200")
    little = whole.scaled("Little", replace(whole.sheet, memory=24e9))
    assert isinstance(little.sheet, DataSheet)
    with pytest.raises(ValueError, match=r"of 100,000 tokens takes 13.1 GB, and .* are left"):
        sequences_that_fit(step_model(on=little), Limits(), 100_000)
    with pytest.raises(ValueError, match="max_num_batched_tokens is 8; must be"):
        Limits(max_num_batched_tokens=8)

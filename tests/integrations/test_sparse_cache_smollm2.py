"""A real model: dense equals transformers' own cache, sparse equals Gossamer's engine."""

import pytest

from gossamer.integrations.transformers import use_gossamer
from tests.engine.serving import TEXT, cpu_llm, greedy, tokens_of
from tests.integrations.generating import generated

# 4 prompts on their own and 2 batches of 8: ends in the middle, at, before and after a block.
ALONE = (1, 32, 65, 100)
BATCHES = ((7, 40, 63, 97, 128, 150, 200, 33), (2, 5, 16, 31, 48, 64, 96, 129))
NEW = 4
SPARSE = "sparse:k=32,v=32"


@pytest.fixture(scope="module")
def batches(smollm2):
    """20 prompts of real text."""
    ids = smollm2[1](TEXT.read_text())["input_ids"]
    batches = [*((length,) for length in ALONE), *BATCHES]
    starts = iter(range(0, 300 * 20, 300))
    return [[ids[(at := next(starts)) : at + n] for n in lengths] for lengths in batches]


def test_dense_equals_transformers(smollm2, batches):
    model, _ = smollm2
    expected = [generated(model, batch, NEW) for batch in batches]
    with use_gossamer(model):
        assert [generated(model, batch, NEW) for batch in batches] == expected


def test_sparse_equals_the_engine(smollm2, batches):
    model, _ = smollm2
    llm = cpu_llm("smollm2", kv=SPARSE, kv_memory="200MB")
    expected = [tokens_of(llm.generate(batch, greedy(NEW))) for batch in batches]
    with use_gossamer(model, SPARSE):
        assert [generated(model, batch, NEW) for batch in batches] == expected

"""What is computed before the first request leaves no trace; which batch sizes have graphs."""

import pytest

from gossamer.engine.graphs import captured_size, captured_sizes
from gossamer.engine.warm_up import _prompt
from tests.engine.serving import cpu_llm, greedy


@pytest.mark.parametrize("tokens", [1, 33, 200])
def test_prompts_of_no_sequence_write_nothing(tiny, tokens):
    with cpu_llm(tiny[0]) as llm:
        [before] = llm.generate(["x"], greedy(5))
        runner = llm.engine.built.runner
        pools = {name: pool.clone() for name, pool in runner.cache.pools.items()}
        logits = runner.run(_prompt(runner.padding_row, tokens))
        assert logits.shape[0] == 1
        for name, pool in runner.cache.pools.items():
            assert pool.equal(pools[name])
        [after] = llm.generate(["x"], greedy(5))
        assert after.outputs == before.outputs


def test_batch_sizes():
    assert captured_sizes(1) == [1]
    assert captured_sizes(20) == [1, 2, 4, 8, 16, 24]
    assert captured_sizes(100)[-3:] == [64, 96, 128]
    for batch in range(1, 300):
        assert batch <= captured_size(batch) < batch + max(8, batch // 2)

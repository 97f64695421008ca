"""Asynchronous scheduling: whatever a request asks for, its output is the same, in as many steps.

tests/engine/test_scheduler.py has the pages; here is everything that reads tokens.
"""

from typing import Any

import pytest

from gossamer.engine import SamplingParams
from gossamer.engine.config import EngineConfig
from gossamer.engine.llm import LLM
from tests.engine.serving import assert_empty, cpu_llm

TEXT = "The quick brown fox jumps over the lazy dog. "
PARAMS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.2, "top_p": 0.9, "seed": 5},
    "several": {"temperature": 1, "n": 3, "seed": 1},
    "penalties": {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "logprobs": {"temperature": 1, "logprobs": 3, "seed": 2},
    "min_tokens": {"temperature": 1, "min_tokens": 30, "seed": 3},
    "stop": {"temperature": 1, "stop": ("a", "e"), "seed": 4},
    "stop_token": {"temperature": 1, "stop_token_ids": tuple(range(20, 40)), "seed": 6},
    "prompt_logprobs": {"temperature": 0, "prompt_logprobs": True},
    "one": {"temperature": 0, "max_tokens": 1},
}
CACHES = ["dense", "sparse:k=8,v=8,window=32", "sparse:k=8,v=8,prefill=dense"]


def served(llm: LLM) -> tuple[list[Any], int]:
    """All kinds of requests at once: their outputs, and in how many steps."""
    prompts = [TEXT * (1 + i) for i in range(len(PARAMS))]
    params = [SamplingParams(**({"max_tokens": 40} | p)) for p in PARAMS.values()]
    before = llm.engine.stats.steps
    outputs = llm.generate(prompts, params)
    assert_empty(llm)
    return [(o.outputs, o.prompt_logprobs) for o in outputs], llm.engine.stats.steps - before


@pytest.mark.parametrize("kv", CACHES)
def test_outputs_are_the_same(tiny, kv):
    with cpu_llm(tiny[0], kv=kv) as llm:
        expected, steps = served(llm)
    with cpu_llm(tiny[0], kv=kv, async_scheduling=True) as llm:
        got, asynchronous = served(llm)
        assert llm.engine.asynchronous
    for name, mine, theirs in zip(PARAMS, got, expected, strict=True):
        assert mine == theirs, name
    # What ends by surprise has one token more on its way, and so may the last step.
    assert steps <= asynchronous <= steps + 1
    reasons = {output.finish_reason for outputs, _ in got for output in outputs}
    assert reasons == {"stop", "length"}


def test_increments_join_to_the_whole(tiny):
    params = SamplingParams(temperature=1, seed=9, max_tokens=30, n=2)
    with cpu_llm(tiny[0], async_scheduling=True) as llm:
        [whole] = llm.generate([TEXT], params)
        deltas = list(llm.stream([TEXT], params))
        for output in whole.outputs:
            mine = [delta for delta in deltas if delta.index == output.index]
            assert "".join(delta.text for delta in mine) == output.text
            assert [t for delta in mine for t in delta.token_ids] == output.token_ids
        assert_empty(llm)


def test_aborted_with_a_token_on_its_way(tiny):
    """It gets no more; who takes its place in the batch is not mixed up with it."""
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with cpu_llm(tiny[0], max_num_seqs=2) as llm:
        expected = [llm.generate([text], params)[0].outputs[0].token_ids for text in ("x", TEXT)]
    with cpu_llm(tiny[0], max_num_seqs=2, async_scheduling=True) as llm:
        gone, stays = llm.add_request("y", params), llm.add_request("x", params)
        for _ in range(3):
            llm.step()
        [ended] = llm.abort(gone)
        next_one = llm.add_request(TEXT, params)
        outputs = {name: llm.engine.requests[name].output for name in (stays, next_one)}
        while llm.engine.busy:
            assert gone not in [delta.request_id for delta in llm.step()]
        assert ended.output.finish_reason == "abort"
        tokens = [outputs[name].outputs[0].token_ids for name in (stays, next_one)]
        assert tokens == expected
        assert_empty(llm)


def test_an_error_while_tokens_are_read(tiny):
    """Everyone concerned ends with it, and the engine goes on."""
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    with cpu_llm(tiny[0], async_scheduling=True) as llm:
        [expected] = llm.generate([TEXT], params)
        names = [llm.add_request(text, params) for text in (TEXT, "x")]
        outputs = [llm.engine.requests[name].output.outputs[0] for name in names]
        llm.step()

        def broken() -> Any:
            raise RuntimeError("the device is on fire")

        object.__setattr__(llm.engine._flight.choice, "read", broken)
        with pytest.raises(RuntimeError, match="on fire"):
            llm.step()
        assert {output.error for output in outputs} == {"RuntimeError: the device is on fire"}
        assert_empty(llm)
        assert llm.generate([TEXT], params)[0].outputs[0].token_ids == (
            expected.outputs[0].token_ids
        )


def test_bad_settings():
    with pytest.raises(ValueError, match="async_scheduling is 3; must be True, False or None"):
        EngineConfig(model="x", async_scheduling=3)
    with pytest.raises(ValueError, match="must be None or False for several ranks"):
        EngineConfig(model="x", async_scheduling=True, tensor_parallel_size=2)

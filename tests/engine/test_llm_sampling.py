"""LLM: what is sampled, what is reported of it, and what ends an output."""

import math

import pytest
import torch

from gossamer.engine import LLM, SamplingParams
from tests.engine.serving import (
    assert_empty,
    cpu_llm,
    greedy,
    joined,
    tokens,
    tokens_of,
)
from tests.models.tiny import expected_logits, random_ids

pytest.importorskip("transformers")

EOS = 2
TEXT = "The sea is everything."


# ---- sampling and ends --------------------------------------------------------------------


def test_greedy_is_the_argmax_of_transformers(llm, tiny):
    ids = random_ids(50).tolist()
    [output] = llm.generate([ids], greedy(10))
    for step, token in enumerate(tokens(output)):
        logits = expected_logits(tiny[1], torch.tensor([*ids, *tokens(output)[:step]]))[-1]
        assert token == int(logits.argmax())
    assert output.outputs[0].finish_reason == "length"
    assert output.outputs[0].text == llm.tokenizer.decode(tokens(output), skip_special_tokens=True)


def test_logprobs_are_those_of_the_model(llm, tiny):
    ids = random_ids(40).tolist()
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=6, logprobs=5, ignore_eos=True)
    [output] = llm.generate([ids], params)
    logprobs = output.outputs[0].logprobs
    assert [entry.token_id for entry in logprobs] == tokens(output)
    for step, entry in enumerate(logprobs):
        logits = expected_logits(tiny[1], torch.tensor([*ids, *tokens(output)[:step]]))[-1]
        expected = logits.log_softmax(-1)
        assert math.isclose(entry.logprob, float(expected[entry.token_id]), abs_tol=1e-4)
        values, best = expected.topk(5)
        assert [token for token, _ in entry.top] == best.tolist()
        assert torch.allclose(torch.tensor([p for _, p in entry.top]), values, atol=1e-4)
    assert llm.generate([ids], greedy(1))[0].outputs[0].logprobs is None


def test_n_outputs(llm):
    """Different by default, each the same again with the seed, and n = 1 is the first of them."""
    params = SamplingParams(n=4, seed=3, max_tokens=12, ignore_eos=True)
    [output] = llm.generate([TEXT], params)
    assert [o.index for o in output.outputs] == [0, 1, 2, 3]
    assert len({tuple(o.token_ids) for o in output.outputs}) == 4
    assert output.usage.completion_tokens == 48
    [again] = llm.generate([TEXT], params)
    assert [o.token_ids for o in again.outputs] == [o.token_ids for o in output.outputs]
    single = SamplingParams(seed=3, max_tokens=12, ignore_eos=True)
    assert tokens(llm.generate([TEXT], single)[0]) == tokens(output)


def test_a_seed_gives_the_same_in_any_batch(llm, tiny):
    params = SamplingParams(seed=5, max_tokens=20, ignore_eos=True)
    [alone] = llm.generate([TEXT], params)
    free = SamplingParams(max_tokens=30, ignore_eos=True)
    batch = llm.generate(["a", "bc", TEXT, "d" * 99], [free, free, params, free])
    assert tokens(batch[2]) == tokens(alone)
    assert tokens(llm.generate([TEXT], SamplingParams(seed=6, max_tokens=20))[0]) != tokens(alone)
    other = cpu_llm(tiny[0], seed=99, max_num_batched_tokens=32)
    assert tokens(other.generate([TEXT], params)[0]) == tokens(alone)


def test_without_a_seed_the_engine_s_seed_decides(tiny):
    """The same calls give the same outputs; a second request of the same prompt gives another."""
    params = SamplingParams(max_tokens=20, ignore_eos=True)

    def two(seed: int) -> list[list[int]]:
        return tokens_of(cpu_llm(tiny[0], seed=seed).generate([TEXT, TEXT], params))

    first = two(0)
    assert first == two(0)
    assert first[0] != first[1]
    assert first != two(1)


def test_stop_tokens(llm):
    [free] = llm.generate([TEXT], greedy(20))
    stop = tokens(free)[4]
    at = tokens(free).index(stop)
    [output] = llm.generate([TEXT], greedy(20, stop_token_ids=[stop, 96]))
    [mine] = output.outputs
    assert (mine.finish_reason, mine.stop_reason) == ("stop", stop)
    assert mine.token_ids == tokens(free)[: at + 1]
    assert mine.text == llm.tokenizer.decode(mine.token_ids[:-1], skip_special_tokens=True)


def test_stop_strings(llm):
    params = SamplingParams(temperature=1, seed=1, max_tokens=40, ignore_eos=True)
    text = llm.generate([TEXT], params)[0].outputs[0].text
    stop = text[10:12]
    at = text.index(stop)
    for included, expected in ((False, text[:at]), (True, text[: at + 2])):
        stopping = SamplingParams(
            **{**params.__dict__, "stop": [stop, "\n\n"]} | {"include_stop_str_in_output": included}
        )
        [mine] = llm.generate([TEXT], stopping)[0].outputs
        assert (mine.finish_reason, mine.stop_reason, mine.text) == ("stop", stop, expected)
        deltas = list(llm.stream([TEXT], stopping))
        assert joined(deltas) == (mine.text, mine.token_ids)
        assert [d.finish_reason for d in deltas if d.finish_reason] == ["stop"]


def make_likely(llm: LLM, token: int) -> None:
    """From now on this token wins wherever it is not banned."""
    run = llm.engine.executor.run

    def biased(step):
        logits = run(step).clone()
        logits[:, token] += 1000.0
        return logits

    llm.engine.executor.run = biased


def test_the_end_of_the_text(llm):
    make_likely(llm, EOS)
    [mine] = llm.generate([TEXT], SamplingParams(max_tokens=9))[0].outputs
    assert (mine.finish_reason, mine.stop_reason, mine.token_ids, mine.text) == (
        *("stop", None, [EOS]),
        "",
    )
    [mine] = llm.generate([TEXT], SamplingParams(max_tokens=9, ignore_eos=True))[0].outputs
    assert (mine.finish_reason, mine.token_ids) == ("length", [EOS] * 9)
    [mine] = llm.generate([TEXT], SamplingParams(max_tokens=9, min_tokens=4))[0].outputs
    assert (mine.finish_reason, len(mine.token_ids)) == ("stop", 5)
    assert EOS not in mine.token_ids[:4]
    assert mine.token_ids[4] == EOS


def test_max_tokens_and_the_longest_sequence(tiny):
    llm = cpu_llm(tiny[0], max_model_len=40)
    assert (
        len(tokens(llm.generate([[3] * 30], SamplingParams(max_tokens=None, ignore_eos=True))[0]))
        == 10
    )
    [output] = llm.generate([[3] * 39], greedy(100))
    assert len(tokens(output)) == 1
    assert output.outputs[0].finish_reason == "length"
    with pytest.raises(ValueError, match="the prompt has 40 tokens; must have 1 to 39"):
        llm.generate([[3] * 40])


def test_usage(llm):
    prompt = random_ids(100).tolist()
    [first] = llm.generate([prompt], greedy(5, n=2))
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (100, 10)
    assert first.usage.cached_tokens == 0
    [second] = llm.generate([prompt], greedy(5))
    assert second.usage.cached_tokens == second.cached_tokens == 96
    assert tokens(second) == tokens(first)
    [third] = llm.generate([[*prompt[:70], 3, 4]], greedy(5))
    assert third.usage.cached_tokens == 64
    assert llm.engine.stats.cached_tokens == 160
    assert llm.engine.stats.output_tokens == 20


def test_no_prefix_caching(tiny):
    llm = cpu_llm(tiny[0], prefix_caching=False)
    prompt = random_ids(100).tolist()
    for _ in range(2):
        assert llm.generate([prompt], greedy(5))[0].usage.cached_tokens == 0
    assert_empty(llm)

"""LLM: prompts, streams and steps."""

import pytest

from gossamer.engine import SamplingParams
from tests.engine.serving import (
    assert_empty,
    cpu_llm,
    greedy,
    joined,
    tokens,
    tokens_of,
)
from tests.models.tiny import random_ids

pytest.importorskip("transformers")

EOS = 2
TEXT = "The sea is everything."


# ---- prompts ------------------------------------------------------------------------------


def test_text_ids_and_chats(llm):
    """All three are the same tokens, given differently."""
    chat = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief"}]
    text = "[user]Hi[system]Be brief[assistant]"
    ids = llm.tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    outputs = [llm.generate(prompt, greedy(8))[0] for prompt in (text, ids, tuple(ids), chat)]
    outputs.append(llm.chat(chat, greedy(8)))
    assert len({output.outputs[0].text for output in outputs}) == 1
    assert {tuple(output.prompt_token_ids) for output in outputs} == {tuple(ids)}
    assert [output.prompt for output in outputs] == [text, None, None, text, text]


def test_lists_keep_their_order(llm):
    """Of kinds mixed, with params for each or for all."""
    prompts = [TEXT, [5, 6, 7], [{"role": "user", "content": "Hi"}], "x", TEXT]
    together = llm.generate(prompts, [greedy(n) for n in (9, 1, 5, 3, 7)])
    assert [len(output.outputs[0].token_ids) for output in together] == [9, 1, 5, 3, 7]
    for prompt, output in zip(prompts, together, strict=True):
        [alone] = llm.generate([prompt], greedy(9))
        assert output.outputs[0].token_ids == alone.outputs[0].token_ids[: len(tokens(output))]
    assert tokens_of(llm.generate(prompts[:2], greedy(4))) == [
        tokens(together[0])[:4],
        [*tokens(together[1]), *tokens(llm.generate([[5, 6, 7]], greedy(4))[0])[1:]],
    ]
    assert llm.generate([]) == []


def test_progress_is_shown_on_stderr_only(llm, capfd):
    with_bar = llm.generate([TEXT, "x"], greedy(3), progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err
    assert tokens_of(with_bar) == tokens_of(llm.generate([TEXT, "x"], greedy(3)))
    assert capfd.readouterr().err == ""


# ---- streams and steps --------------------------------------------------------------------


def test_a_stream_is_the_text_in_parts(llm):
    prompts, params = [TEXT, "x"], SamplingParams(n=2, seed=4, max_tokens=15, ignore_eos=True)
    outputs, deltas = llm.generate(prompts, params), list(llm.stream(prompts, params))
    for output in outputs:
        own = [delta for delta in deltas if delta.request.prompt == output.prompt]
        for completion in output.outputs:
            index = completion.index
            assert joined(own, index) == (completion.text, completion.token_ids)
            ends = [d.finish_reason for d in own if d.index == index]
            assert ends == [None] * 14 + ["length"]
        assert own[-1].request.outputs == output.outputs


def test_leaving_a_stream_aborts(llm):
    seen = []
    for delta in llm.stream([TEXT, "other"], SamplingParams(max_tokens=200, ignore_eos=True)):
        seen.append(delta)
        if len(seen) == 7:
            break
    del delta
    assert_empty(llm)
    assert {o.finish_reason for d in seen for o in d.request.outputs} == {"abort"}


def test_streams_beside_each_other(llm):
    """Each gets its own increments, whoever makes the steps: no one waits for lost ones."""
    params = greedy(12)
    [expected_a], [expected_b] = llm.generate(["aa"], params), llm.generate(["bbb"], params)
    first, second = llm.stream(["aa"], params), llm.stream(["bbb"], params)
    deltas_a, deltas_b = [next(first), next(first)], [next(second)]
    assert len(tokens(llm.generate(["c"], greedy(50))[0])) == 50  # both finish on the way
    deltas_a += first
    deltas_b += second
    assert joined(deltas_a) == (expected_a.outputs[0].text, tokens(expected_a))
    assert joined(deltas_b) == (expected_b.outputs[0].text, tokens(expected_b))


def test_a_stream_ends_when_its_request_is_aborted(llm):
    stream = llm.stream([TEXT], greedy(100))
    first = next(stream)
    [end] = llm.abort(first.request_id)
    assert end.finish_reason == "abort"
    assert [delta.finish_reason for delta in stream] == ["abort"]


def test_step_by_step(llm):
    [expected] = llm.generate([TEXT], greedy(6))
    assert llm.step() == []
    mine = llm.add_request(TEXT, greedy(6), request_id="mine")
    other = llm.add_request([4, 5, 6], greedy(3))
    assert mine == "mine"
    assert other != mine
    deltas = []
    while llm.engine.busy:
        deltas += llm.step()
    own = [delta for delta in deltas if delta.request_id == "mine"]
    assert joined(own) == (expected.outputs[0].text, tokens(expected))
    assert len(deltas) == 9
    assert own[-1].request.finished


def test_abort(llm):
    params = SamplingParams(n=3, max_tokens=100, ignore_eos=True)
    gone, stays = llm.add_request(TEXT, params), llm.add_request("x", greedy(9))
    waiting = llm.add_request("y", greedy(9))
    assert [delta.finish_reason for delta in llm.abort(waiting)] == ["abort"]
    for _ in range(4):
        llm.step()
    assert llm.engine.kv_bytes > 0
    ended = llm.abort(gone)
    assert [(d.index, d.finish_reason) for d in ended] == [(i, "abort") for i in range(3)]
    assert [len(o.token_ids) for o in ended[0].request.outputs] == [4, 4, 4]
    assert llm.abort(gone) == llm.abort("never") == []
    last = [delta for _ in range(5) for delta in llm.step()]
    assert {delta.request_id for delta in last} == {stays}
    assert last[-1].finish_reason == "length"


def test_close_aborts(tiny):
    with cpu_llm(tiny[0]) as llm:
        llm.add_request(TEXT, greedy(50))
        llm.step()
    assert_empty(llm)
    llm.close()


def test_memory_is_counted(tiny):
    """Of a compressed cache less is used than a plain one would, and nothing once it is idle."""
    llm = cpu_llm(tiny[0], kv="sparse:k=4,v=4,values=int4", prefix_caching=False)
    llm.add_request(random_ids(300).tolist(), greedy(4))
    llm.step()
    assert 0 < llm.engine.kv_bytes < 0.5 * llm.engine.kv_bytes_dense
    while llm.engine.busy:
        llm.step()
    assert llm.engine.kv_bytes == llm.engine.kv_bytes_dense == 0

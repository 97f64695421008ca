"""LLM: what people pass in, what they get, and what happens when something is wrong."""

import math

import pytest
import torch

from gossamer.engine import LLM, Delta, SamplingParams
from tests.engine.serving import (
    assert_empty,
    cpu_llm,
    greedy,
    record,
    tiny_with_tokenizer,
    tokens_of,
)
from tests.models.tiny import VOCAB, expected_logits, random_ids, tiny_directory

pytest.importorskip("transformers")

EOS = 2
TEXT = "The sea is everything."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(directory, the model of transformers)"""
    torch.manual_seed(11)
    path = tmp_path_factory.mktemp("tiny")
    return path, tiny_with_tokenizer(path)


@pytest.fixture
def llm(tiny):
    engine = cpu_llm(tiny[0])
    yield engine
    assert_empty(engine)


def joined(deltas: list[Delta], index: int = 0) -> tuple[str, list[int]]:
    """Text and tokens of one output, put together from its increments."""
    own = [delta for delta in deltas if delta.index == index]
    return "".join(d.text for d in own), [token for d in own for token in d.token_ids]


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


def tokens(output) -> list[int]:
    return output.outputs[0].token_ids


def test_progress_is_shown_on_stderr_only(llm, capfd):
    with_bar = llm.generate([TEXT, "x"], greedy(3), progress=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err
    assert tokens_of(with_bar) == tokens_of(llm.generate([TEXT, "x"], greedy(3)))
    assert capfd.readouterr().err == ""


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


# ---- what is wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("", ValueError, "the prompt is empty"),
        ([], ValueError, "the prompt is empty"),
        ([1, VOCAB], ValueError, f"a token id is {VOCAB}; must be an integer 0 to {VOCAB - 1}"),
        ([1, -1], ValueError, "a token id is -1"),
        ([1, 2.5], ValueError, "a token id is 2.5"),
        ([True, 1], ValueError, "a token id is True"),
        ([1, "x"], ValueError, "a token id is 'x'"),
        ([3] * 512, ValueError, "the prompt has 512 tokens; must have 1 to 511"),
        ([{"no": "role"}, 5], ValueError, "the chat does not fit the model's template"),
        (7, TypeError, "a prompt is int; must be text, token ids or a chat"),
        (None, TypeError, "a prompt is NoneType"),
    ],
)
def test_a_bad_prompt_is_named_and_nothing_is_queued(llm, prompt, error, message):
    with pytest.raises(error, match=f"prompt 1: .*{message}"):
        llm.generate([TEXT, prompt, "x"], greedy(3))
    assert_empty(llm)
    assert len(tokens(llm.generate([TEXT], greedy(3))[0])) == 3


def test_bad_arguments(llm):
    with pytest.raises(TypeError, match="prompts is int; must be text, ids, a chat or a list"):
        llm.generate(5)
    with pytest.raises(ValueError, match="2 params for 3 prompts"):
        llm.generate(["a", "b", "c"], [greedy(1), greedy(2)])
    with pytest.raises(TypeError, match="prompt 1: params is dict; must be SamplingParams"):
        llm.generate(["a", "b"], [greedy(1), {"max_tokens": 3}])
    assert_empty(llm)
    llm.add_request("a", greedy(2), request_id="twice")
    with pytest.raises(ValueError, match="request_id is 'twice', which is running"):
        llm.add_request("b", greedy(2), request_id="twice")
    llm.abort("twice")


def test_others_go_on_beside_a_bad_request(llm):
    good = llm.add_request(TEXT, greedy(5))
    llm.step()
    with pytest.raises(ValueError, match="prompt 0: the prompt is empty"):
        llm.generate([""])
    with pytest.raises(ValueError, match="a token id is 1000"):
        llm.add_request([1000])
    deltas = [delta for _ in range(4) for delta in llm.step()]
    assert [delta.request_id for delta in deltas] == [good] * 4
    assert deltas[-1].finish_reason == "length"


def test_no_tokenizer(tmp_path):
    """Ids will do; text, chats and stop strings cannot be had."""
    tiny_directory("llama", tmp_path)
    llm = cpu_llm(tmp_path)
    [output] = llm.generate([[1, 2, 3]], greedy(4))
    assert (len(tokens(output)), output.outputs[0].text) == (4, "")
    for prompt in ("text", [{"role": "user", "content": "x"}]):
        with pytest.raises(ValueError, match="the model has no tokenizer"):
            llm.generate([prompt])
    with pytest.raises(ValueError, match=r"stop is \('x',\); must be empty"):
        llm.generate([[1, 2]], greedy(4, stop="x"))
    assert_empty(llm)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kv_memry": "1GB"}, TypeError, "kv_memry"),
        ({"kv_memory": "lots"}, ValueError, "kv_memory is 'lots'; must be positive bytes"),
        ({"kv_memory": 0}, ValueError, "kv_memory is 0"),
        ({"kv_memory": 5000}, ValueError, "kv_memory is 5000 bytes; must be at least"),
        ({"kv_memory": 5000, "kv": "sparse:k=8,v=8"}, ValueError, "kv_memory is 5000 bytes"),
        (
            {"kv_memory": "200KB", "max_model_len": 512},
            ValueError,
            "max_model_len is 512, and kv_memory holds 256 tokens of dense:fp32",
        ),
        ({"max_model_len": 513}, ValueError, "max_model_len is 513; must be 2 to 512"),
        ({"max_model_len": 1}, ValueError, "max_model_len is 1; must be an integer of at least 2"),
        ({"max_num_seqs": 0}, ValueError, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 31}, ValueError, "max_num_batched_tokens is 31; .* least 32"),
        ({"dtype": "float8"}, ValueError, "dtype is 'float8'"),
        ({"device": "toaster"}, ValueError, "device 'toaster' cannot be used"),
        ({"kv": "spares:k=8"}, ValueError, "KV spec 'spares:k=8'"),
        ({"kv": "sparse:k=8,v=17"}, ValueError, "v: keep is 17; must be 1 to 16"),
        ({"kv": "sparse:k=8,v=8,window=33"}, ValueError, "window is 33; must be a multiple of 32"),
        ({"kv": "sparse:k=8,v=8,k_policy=think"}, ValueError, "k_policy is 'think'; the engine"),
        ({"kv": "sparse:k=8,v=8,v_policy=random"}, ValueError, "v_policy is 'random'; the engine"),
        (
            {"kv": "sparse:k=8,v=8,k_policy=weighted"},
            ValueError,
            "kv is sparse:k=8,v=8,k_policy=weighted, which needs a calibration",
        ),
        ({"kv": "sparse:k=8,v=8,basis=pca"}, ValueError, "basis=pca, which needs a calibration"),
    ],
)
def test_a_bad_option_is_named(tiny, options, error, message):
    with pytest.raises(error, match=message):
        cpu_llm(tiny[0], **options)


def test_no_such_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere: there is no such model directory"):
        cpu_llm(tmp_path / "nowhere")


def test_memory_that_is_too_small_says_what_would_do(tiny):
    """The number in the message works."""
    for kv in ("dense", "sparse:k=8,v=8,window=64,sink=32"):
        with pytest.raises(ValueError, match="must be at least") as caught:
            cpu_llm(tiny[0], kv=kv, kv_memory=100)
        least = int(str(caught.value).split("at least ")[1].split()[0])
        with pytest.raises(ValueError, match="must be at least"):
            cpu_llm(tiny[0], kv=kv, kv_memory=least - 1)
        llm = cpu_llm(tiny[0], kv=kv, kv_memory=least)
        longest = llm.engine.built.max_model_len
        [output] = llm.generate(
            [[3] * (longest - 5)], SamplingParams(max_tokens=None, ignore_eos=True)
        )
        assert len(tokens(output)) == 5
        assert_empty(llm)


# ---- failures -----------------------------------------------------------------------------


def fail_at(llm: LLM, number: int, error: BaseException) -> None:
    """The executor raises in the middle of this step, after the model has run."""
    run, steps = llm.engine.executor.run, iter(range(10**6))

    def broken(step):
        logits = run(step)
        if next(steps) == number:
            raise error
        return logits

    llm.engine.executor.run = broken


@pytest.mark.parametrize("kv", ["dense", "sparse:k=8,v=8"])
@pytest.mark.parametrize("number", [0, 1, 4])
def test_a_failed_step_ends_its_requests(tiny, kv, number):
    """They say why, their pages return, and the engine serves on as if nothing had happened."""
    llm, prompts = cpu_llm(tiny[0], kv=kv, max_num_batched_tokens=64), [TEXT * 6, "x"]
    expected = tokens_of(llm.generate(prompts, greedy(8)))
    fail_at(llm, number, RuntimeError("the device is on fire"))
    requests = [llm.add_request(prompt, greedy(8)) for prompt in prompts]
    outputs = [llm.engine.requests[name].output.outputs[0] for name in requests]
    for _ in range(number):
        llm.step()
    with pytest.raises(RuntimeError, match="on fire"):
        llm.step()
    failed = [output for output in outputs if output.finish_reason == "error"]
    assert failed
    assert {output.error for output in failed} == {"RuntimeError: the device is on fire"}
    while llm.engine.busy:
        llm.step()
    for output, theirs in zip(outputs, expected, strict=True):
        assert output.token_ids == (
            theirs if output not in failed else theirs[: len(output.token_ids)]
        )
    assert_empty(llm)
    assert tokens_of(llm.generate(prompts, greedy(8))) == expected
    assert_empty(llm)


def test_generate_raises_what_a_step_raises(llm):
    fail_at(llm, 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        llm.generate([TEXT, "x"], greedy(50))
    assert_empty(llm)
    assert len(tokens(llm.generate([TEXT], greedy(5))[0])) == 5


def test_a_stream_ends_when_someone_else_s_step_fails(llm):
    stream = llm.stream([TEXT], greedy(50))
    first = next(stream)
    fail_at(llm, 1, RuntimeError("the device is on fire"))
    with pytest.raises(RuntimeError, match="on fire"):
        llm.generate(["x"], greedy(50))
    assert [delta.finish_reason for delta in stream] == [None]  # the step that went well
    assert first.request.outputs[0].finish_reason == "error"


def test_nan_ends_only_its_own_request(llm):
    [expected] = llm.generate(["x"], greedy(5))
    good, bad = llm.add_request("x", greedy(5)), llm.add_request(TEXT, greedy(5))
    run, outputs = llm.engine.executor.run, {}

    def broken(step):
        logits = run(step).clone()
        rows = {seq.row: seq.request_id for seq in llm.engine.scheduler.running}
        sampled = [rows[span.row] for span in step.spans if span.sample]
        logits[[name == bad for name in sampled]] = float("nan")
        return logits

    llm.engine.executor.run = broken
    while llm.engine.busy:
        outputs |= {delta.request_id: delta.request.outputs[0] for delta in llm.step()}
    assert outputs[good].token_ids == tokens(expected)
    assert outputs[bad].finish_reason == "error"
    assert "NaN" in outputs[bad].error


def test_recorded_logits_are_what_is_sampled_from(llm):
    """Of the helper that other tests rely on."""
    logits = record(llm)
    [output] = llm.generate([TEXT], greedy(6))
    seen = logits[output.request_id]
    assert sorted(seen) == list(range(len(TEXT) - 1, len(TEXT) + 5))
    assert [int(seen[position].argmax()) for position in sorted(seen)] == tokens(output)

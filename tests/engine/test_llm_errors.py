"""LLM: bad input and failures; others go on and nothing leaks."""

import pytest

from gossamer.engine import LLM, SamplingParams
from tests.engine.serving import (
    assert_empty,
    cpu_llm,
    greedy,
    record,
    tokens,
    tokens_of,
)
from tests.models.tiny import VOCAB, tiny_directory

pytest.importorskip("transformers")

EOS = 2
TEXT = "The sea is everything."


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
        (
            {"kv": "sparse:k=8,v=8,k_policy=think"},
            ValueError,
            "policy is 'think'; must be one of",
        ),
        (
            {"kv": "sparse:k=8,v=8,v_policy=random"},
            ValueError,
            "policy is 'random'; must be one",
        ),
        ({"kv": "coded:4x32"}, ValueError, "k: values is '4x32', which is 32 channels; must add"),
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

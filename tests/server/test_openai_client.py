"""The official client, unmodified."""

import math

import pytest

from gossamer.server.schemas.completions import CompletionBody
from tests.server.live import MODEL, SPARSE

openai = pytest.importorskip("openai")

PROMPT = "The sea is everything."
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
GREEDY = {"model": MODEL, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client):
    [model] = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="must be 'tiny'"):
        client.models.retrieve("../../etc/passwd")


def test_completion(client, live):
    answer = client.completions.create(prompt=PROMPT, max_tokens=20, **GREEDY)
    expected = live.offline(PROMPT, max_tokens=20)
    assert answer.choices[0].text == expected.outputs[0].text
    assert answer.choices[0].finish_reason == "length"
    length = len(expected.prompt_token_ids)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (length, 20)
    assert usage.total_tokens == length + 20


def test_streamed_completion(client, live):
    stream = client.completions.create(
        prompt=PROMPT, max_tokens=20, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = list(stream)
    expected = live.offline(PROMPT, max_tokens=20)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.outputs[0].text
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"
    assert all(c.choices[0].finish_reason is None for c in chunks[:-1])
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    assert last.choices == []
    assert last.usage.completion_tokens == 20


def test_chat(client, live):
    answer = client.chat.completions.create(messages=CHAT, max_completion_tokens=12, **GREEDY)
    expected = live.offline(CHAT, max_tokens=12)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == (
        "assistant",
        expected.outputs[0].text,
    )
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_streamed_chat(client, live):
    stream = client.chat.completions.create(
        messages=CHAT, max_tokens=12, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    *chunks, last = list(stream)
    expected = live.offline(CHAT, max_tokens=12)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == expected.outputs[0].text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage.total_tokens == len(expected.prompt_token_ids) + 12


def test_no_usage_unless_asked_for(client):
    stream = client.chat.completions.create(messages=CHAT, max_tokens=3, stream=True, **GREEDY)
    assert all(chunk.choices and chunk.usage is None for chunk in stream)


def test_text_parts(client):
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    whole, split = (
        client.chat.completions.create(
            messages=[{"role": "user", "content": content}], max_tokens=6, **GREEDY
        )
        for content in ("Hello there", parts)
    )
    assert whole.choices[0].message.content == split.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_three_outputs(client, stream):
    """Different ones, and the same ones again for the same seed."""

    def ask():
        answer = client.chat.completions.create(
            model=MODEL, messages=CHAT, n=3, max_tokens=10, seed=7, temperature=1, stream=stream
        )
        if not stream:
            return [choice.message.content for choice in answer.choices]
        texts = ["", "", ""]
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        return texts

    first = ask()
    assert len(first) == len(set(first)) == 3
    assert ask() == first


def test_without_a_seed_a_restart_does_not_repeat_answers():
    bodies = [CompletionBody(model=MODEL, prompt="x", seed=seed) for seed in (None, None, 7, 7)]
    first, second, *seeded = (body.params(5).seed for body in bodies)
    assert first != second
    assert seeded == [7, 7]


def test_several_prompts(client, live):
    prompts = [PROMPT, "Once upon a time"]
    answer = client.completions.create(prompt=prompts, n=2, max_tokens=6, **GREEDY)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    expected = [live.offline(prompt, max_tokens=6) for prompt in prompts]
    texts = [each.outputs[0].text for each in expected]
    assert [choice.text for choice in answer.choices] == [t for t in texts for _ in range(2)]
    assert answer.usage.prompt_tokens == sum(len(each.prompt_token_ids) for each in expected)
    assert answer.usage.completion_tokens == 24


def test_token_ids(client):
    ids = [[5, 6, 7], [8, 9]]
    both = client.completions.create(prompt=ids, max_tokens=5, **GREEDY)
    single = client.completions.create(prompt=ids[1], max_tokens=5, **GREEDY)
    assert both.choices[1].text == single.choices[0].text


@pytest.mark.parametrize("stream", [False, True])
def test_stop(client, live, stream):
    whole = live.offline(PROMPT, max_tokens=30).outputs[0].text
    stop = whole[10:12]
    answer = client.completions.create(
        prompt=PROMPT, max_tokens=30, stop=[stop, "\n\n"], stream=stream, **GREEDY
    )
    choices = [c.choices[0] for c in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
    assert choices[-1].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client, live, stream):
    answer = client.chat.completions.create(
        messages=CHAT, max_tokens=5, logprobs=True, top_logprobs=3, stream=stream, **GREEDY
    )
    choices = [c.choices[0] for c in answer] if stream else answer.choices
    found = [entry for c in choices if c.logprobs for entry in c.logprobs.content]
    expected = live.offline(CHAT, max_tokens=5, logprobs=3).outputs[0]
    assert [entry.logprob for entry in found] == pytest.approx(
        [entry.logprob for entry in expected.logprobs], abs=1e-4
    )
    decoded = live.llms["dense"].tokenizer.decode(expected.token_ids)  # ends of turns, too
    assert "".join(entry.token for entry in found) == decoded
    for entry in found:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert bytes(entry.bytes).decode() == entry.token


@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs(client, stream):
    answer = client.completions.create(
        prompt=PROMPT, max_tokens=5, logprobs=2, stream=stream, **GREEDY
    )
    parts = [c.choices[0].logprobs for c in answer] if stream else [answer.choices[0].logprobs]
    tokens = [token for part in parts for token in part.tokens]
    assert len(tokens) == 5
    offsets = [offset for part in parts for offset in part.text_offset]
    assert offsets == [sum(map(len, tokens[:i])) for i in range(5)]
    for part in parts:
        for token, value, top in zip(
            part.tokens, part.token_logprobs, part.top_logprobs, strict=True
        ):
            assert top[token] == value <= 0
            assert len(top) == 2
            assert math.fsum(math.exp(v) for v in top.values()) <= 1.0001


def test_each_cache_answers_for_itself(client, live):
    """`kv` picks a loaded cache, by its spec or by another spelling of it."""
    prompt = PROMPT * 8
    for kv, spelt in (("dense", "dense:fp32"), (SPARSE, "sparse:v=8,k=8")):
        expected = live.offline(prompt, kv, max_tokens=20).outputs[0].text
        for name in (kv, spelt):
            answer = client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=20,
                temperature=0,
                extra_body={"ignore_eos": True, "kv": name},
            )
            assert answer.choices[0].text == expected
            assert answer.gossamer["kv"] == kv
    with pytest.raises(openai.BadRequestError, match=f"loaded: dense, {SPARSE}"):
        client.completions.create(model=MODEL, prompt="x", extra_body={"kv": "sparse:k=4,v=4"})


def test_errors_have_the_client_s_types(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt="x")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x " * 9000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="temperature is 3"):
        client.completions.create(model=MODEL, prompt="x", temperature=3)

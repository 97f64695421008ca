"""Structured outputs, and the rest of the surface, through the official client."""

import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from benchmarks.end_to_end.random_schemas import schemas
from gossamer.engine.grammars import Grammars
from tests.engine.serving import CHARACTERS
from tests.server.live import MODEL, SPARSE, serving
from tests.server.scripted import Scripted

openai = pytest.importorskip("openai")

CHAT = [{"role": "user", "content": "Go on"}]
PROMPT = "The sea is everything."
SCHEMAS = 24


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def text_of(answer, stream):
    """Of one chat, which must have come to its end."""
    if not stream:
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        return choice.message.content
    chunks = [chunk.choices[0] for chunk in answer]
    assert chunks[-1].finish_reason == "stop"
    return "".join(choice.delta.content or "" for choice in chunks)


def ask(client, stream=False, **fields):
    fields = {"model": MODEL, "messages": CHAT, "max_tokens": 480, "temperature": 1, **fields}
    return text_of(client.chat.completions.create(stream=stream, **fields), stream)


@pytest.mark.parametrize("stream", [False, True])
def test_random_schemas_give_valid_documents(client, stream):
    """Of all kinds that are supported, in one batch, from a model that knows nothing."""

    def one(seed):
        schema = chosen[seed]
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        kv = {"kv": SPARSE} if seed % 2 else {}
        text = ask(client, stream, response_format=form, seed=seed, extra_body=kv)
        checker = jsonschema.FormatChecker()
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))

    # The model has no token for an é.
    chosen = [schema for schema in schemas(2 * SCHEMAS) if "é" not in str(schema)]
    assert len(chosen) >= SCHEMAS
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(SCHEMAS)))


@pytest.mark.parametrize("stream", [False, True])
def test_the_other_kinds(client, stream):
    for fields, pattern in (
        ({"regex": r"\d{3}-[x-z]{2,4}"}, r"\d{3}-[x-z]{2,4}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'root ::= "a" "b"? "c"'}, "ab?c"),
        ({"json": {"enum": [1, "x"]}}, '1|"x"'),
    ):
        text = ask(client, stream, seed=1, extra_body={"structured_outputs": fields})
        assert re.fullmatch(pattern, text)
    # A random model finds no end of an object by itself: this one is told to.
    quote, close = (CHARACTERS.index(character) + 3 for character in '"}')
    bias = {str(quote): -100, str(close): 100}
    text = ask(client, stream, logit_bias=bias, response_format={"type": "json_object"})
    assert isinstance(json.loads(text), dict)


def test_completions_and_several_outputs(client):
    answer = client.completions.create(
        model=MODEL,
        prompt=[PROMPT, "Once"],
        n=3,
        seed=4,
        stop="9",
        presence_penalty=1,
        extra_body={"structured_outputs": {"regex": "[0-8]{5}[a-f]|9x"}},
    )
    texts = [choice.text for choice in answer.choices]
    assert len(texts) == 6
    assert all(re.fullmatch("[0-8]{5}[a-f]|", text) for text in texts)


def test_a_grammar_that_compiles_for_long_stops_nobody(live, client, monkeypatch):
    """Neither the requests that run nor those that come; it ends with its client."""
    gate, begun = threading.Event(), threading.Event()
    compile_one = Grammars._compile

    def slow(self, wanted):
        if "slow" in wanted.text:
            begun.set()
            gate.wait(20)
        return compile_one(self, wanted)

    monkeypatch.setattr(Grammars, "_compile", slow)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(ask, client, extra_body={"structured_outputs": {"regex": "slow"}})
        assert begun.wait(20)
        assert live.text()
        assert ask(client, extra_body={"structured_outputs": {"regex": "quick"}}) == "quick"
        assert not late.done()
        gate.set()
        assert late.result(20) == "slow"
    begun.clear()
    gate.clear()
    body = {"model": MODEL, "messages": CHAT, "structured_outputs": {"regex": "slow too"}}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).post("/chat/completions", body=body, cast_to=object)
    assert begun.wait(20)
    live.assert_empty()
    gate.set()


def test_echo_with_logprobs(client, live):
    """As harnesses of evaluations ask for the likelihood of a text."""
    answer = client.completions.create(
        model=MODEL, prompt=[PROMPT, "Once"], max_tokens=3, temperature=0, logprobs=2, echo=True
    )
    for prompt, choice in zip((PROMPT, "Once"), answer.choices, strict=True):
        expected = live.offline(prompt, max_tokens=3, logprobs=2, prompt_logprobs=True)
        assert choice.text == prompt + expected.outputs[0].text
        found = choice.logprobs
        assert "".join(found.tokens) == choice.text
        assert found.text_offset == list(range(len(choice.text)))
        assert found.token_logprobs[0] is found.top_logprobs[0] is None
        own = [*expected.prompt_logprobs[1:], *(e.logprob for e in expected.outputs[0].logprobs)]
        assert found.token_logprobs[1:] == pytest.approx(own, abs=1e-4)
        for value, top in zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
            assert len(top) == 2
            assert value <= max(top.values()) + 1e-6
            assert math.fsum(math.exp(v) for v in top.values()) <= 1.0001
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "echo": True}
    for more in ({}, {"logprobs": 2}):
        whole = client.completions.create(**fields, **more).choices[0]
        parts = [c.choices[0] for c in client.completions.create(**fields, **more, stream=True)]
        assert "".join(part.text for part in parts) == whole.text
        if more:
            tokens = [token for part in parts for token in part.logprobs.tokens]
            assert tokens == whole.logprobs.tokens
    ids = client.completions.create(**{**fields, "prompt": [68, 69, 70]}).choices[0].text
    assert ids.startswith("abc")


def test_best_of(client):
    """The likeliest of those that the same seed gives."""
    fields = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "seed": 9, "logprobs": 0}
    every = client.completions.create(**fields, n=5).choices
    mean = {c.text: sum(c.logprobs.token_logprobs) / len(c.logprobs.tokens) for c in every}
    best = client.completions.create(**fields, n=2, best_of=5)
    assert [c.text for c in best.choices] == sorted(mean, key=lambda text: -mean[text])[:2]
    assert [c.index for c in best.choices] == [0, 1]
    assert best.usage.completion_tokens == sum(len(c.logprobs.tokens) for c in every)
    del fields["logprobs"]
    assert client.completions.create(**fields, best_of=5).choices[0].logprobs is None


def test_fields_that_may_be_ignored(client):
    fields = {"metadata": {"a": "b"}, "service_tier": "auto", "store": False, "user": "me"}
    fields |= {"safety_identifier": "x", "prompt_cache_key": "y"}
    assert ask(client, seed=1, max_tokens=400, **fields) is not None


@pytest.mark.parametrize("stream", [False, True])
def test_responses_of_text(client, live, stream):
    fields = {"model": MODEL, "input": "Go on", "max_output_tokens": 40, "temperature": 0}
    with Scripted(live.llm, "It is said."):
        answer = client.responses.create(**fields, instructions="Be brief.", stream=stream)
        events = list(answer) if stream else []
    if stream:
        kinds = [event.type for event in events]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
        assert "".join(deltas) == "It is said."
        assert kinds[:4] == [
            *("response.created", "response.in_progress"),
            *("response.output_item.added", "response.content_part.added"),
        ]
        assert kinds[-4:] == [
            *("response.output_text.done", "response.content_part.done"),
            *("response.output_item.done", "response.completed"),
        ]
        answer = events[-1].response
    assert (answer.status, answer.output_text) == ("completed", "It is said.")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.output_tokens == len("It is said.") + 1
    again = [{"role": "user", "content": "Go on"}, answer.output[0].model_dump(exclude_none=True)]
    cut = client.responses.create(**{**fields, "input": again, "max_output_tokens": 2})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    form = {"type": "json_schema", "name": "a", "schema": {"enum": ["yes", "no"]}}
    held = client.responses.create(**fields, text={"format": form}, top_logprobs=1)
    assert json.loads(held.output_text) in ("yes", "no")
    shown = held.output[0].content[0].logprobs
    assert "".join(entry.token for entry in shown[: len(held.output_text)]) == held.output_text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": []}, "input"),
        ({"input": "x", "store": True}, "store is True"),
        ({"input": "x", "previous_response_id": "r"}, "previous_response_id: no such field"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools.0.type is 'web_search'"),
        ({"input": "x", "tool_choice": "required"}, "tool_choice is there without tools"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "arguments is mis"),
        ({"input": [{"role": "user"}]}, "content is missing"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "schema with type json_sch"),
        ({"input": "x", "background": True}, "background is True"),
        ({"input": "x", "max_output_tokens": 600}, "max_tokens is 600; must be 1 to"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning: no such field"),
    ],
)
def test_bad_responses_are_named(live, fields, message):
    answer = live.post("/v1/responses", model=MODEL, **fields)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_reasoning_is_apart(tiny):
    """Where the template has tags for it."""
    think = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"
    with serving(tiny) as live:
        for tokenizer in (live.gateway.tokens.tokenizer, live.gateway.tokens.decoder):
            tokenizer.chat_template = think
        client = openai.OpenAI(base_url=live.url + "/v1", api_key="none")
        fields = {"model": MODEL, "messages": CHAT, "max_tokens": 60}
        with client, Scripted(live.llm, "Is it? Yes. </think> It is."):
            message = client.chat.completions.create(**fields).choices[0].message
            assert (message.reasoning_content, message.content) == ("Is it? Yes. ", "It is.")
            deltas = [
                c.choices[0].delta for c in client.chat.completions.create(**fields, stream=True)
            ]
            thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
            assert thought == "Is it? Yes. "
            assert "".join(d.content or "" for d in deltas) == "It is."
            answer = client.responses.create(model=MODEL, input="Go on")
            assert [item.type for item in answer.output] == ["reasoning", "message"]
            assert answer.output_text == "It is."
            assert answer.usage.output_tokens_details.reasoning_tokens == len("Is it? Yes. ")
            kinds = [e.type for e in client.responses.create(model=MODEL, input="x", stream=True)]
            assert "response.reasoning_text.delta" in kinds
            again = [*CHAT, message, {"role": "user", "content": "More"}]
            assert client.chat.completions.create(**{**fields, "messages": again}).choices

"""Tools through the official client: rendered, called, streamed and whole, by four families."""

import json
import shutil

import pytest
from transformers import AutoTokenizer

from gossamer.server import Settings
from gossamer.server.tool_parsers import FORMATS
from tests.server.live import MODEL, serving
from tests.server.scripted import Scripted
from tests.server.templates import TEMPLATES
from tests.server.test_tool_parsers import ARGUMENTS, TWO

openai = pytest.importorskip("openai")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ADD = {"type": "function", "function": {"name": "add"}}
TOOLS = [WEATHER, ADD]
USER = {"role": "user", "content": "Weather in Paris?"}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'},
}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny"},
    {"role": "user", "content": "Thanks. And Rome?"},
]


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def live(longer, family, tmp_path_factory):
    """Each family's template on the same model."""
    path = tmp_path_factory.mktemp(family) / "tiny"
    shutil.copytree(longer, path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATES[family]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    with serving(path) as live:
        yield live


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, **fields):
    fields = {"model": MODEL, "messages": [USER], "tools": TOOLS, "max_tokens": 300, **fields}
    return client.chat.completions.create(**fields)


def joined(stream):
    """The message that a stream's deltas make, and why it ended."""
    content, calls, reason = "", [], None
    for chunk in stream:
        [choice] = chunk.choices
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            if call.index == len(calls):
                assert call.id
                assert call.type == "function"
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
        reason = choice.finish_reason or reason
    return content, [tuple(call) for call in calls], reason


def said(answer):
    """The same of a whole one."""
    [choice] = answer.choices
    calls = choice.message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    found = [(call.function.name, call.function.arguments) for call in calls]
    return choice.message.content or "", found, choice.finish_reason


def test_templates_render_as_transformers_renders_them(live, family):
    tokenizer = AutoTokenizer.from_pretrained(live.llm.engine.config.model)
    plain = json.loads(json.dumps(HISTORY))
    plain[2]["content"] = ""
    call = plain[2]["tool_calls"][0]["function"]
    call["arguments"] = json.loads(call["arguments"])
    expected = tokenizer.apply_chat_template(
        plain, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    assert "get_weather" in expected
    ids = []
    add = live.llm.engine.add_request
    live.llm.engine.add_request = lambda prompt, *a, **k: ids.append(prompt) or add(prompt, *a, **k)
    try:
        body = {"model": MODEL, "messages": HISTORY, "tools": TOOLS, "max_tokens": 1}
        assert live.post("/v1/chat/completions", **body).status_code == 200
        without = {**body, "tool_choice": "none", "messages": [USER]}
        assert live.post("/v1/chat/completions", **without).status_code == 200
    finally:
        del live.llm.engine.add_request
    encoded = [
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (
            expected,
            tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True),
        )
    ]
    assert [list(each) for each in ids] == encoded


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_the_model_chooses(client, live, family, stream):
    text = TWO[family].replace("Î", "I")  # what the tiny vocabulary can write
    arguments = [each.replace("Î", "I") for each in ARGUMENTS]
    read = joined if stream else said
    with Scripted(live.llm, text):
        content, calls, reason = read(chat(client, stream=stream))
        assert (content, reason) == ("", "tool_calls")
        assert calls == list(zip(("get_weather", "add"), arguments, strict=True))
        one = read(chat(client, stream=stream, parallel_tool_calls=False))
        assert one == ("", calls[:1], "tool_calls")
        _, none, reason = read(chat(client, stream=stream, tool_choice="none"))
        assert (none, reason) == ([], "stop")
    with Scripted(live.llm, "It rains."):
        assert read(chat(client, stream=stream)) == ("It rains.", [], "stop")


def is_weather(arguments):
    found = json.loads(arguments)
    return found["city"] in ("Paris", "Rome") and 1 <= found["days"] <= 9 and len(found) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_are_required(client, family, stream):
    """A random model writes them too, as the grammar leaves it nothing else."""
    read = joined if stream else said
    seen = 0
    for seed in range(2):
        content, calls, reason = read(
            chat(client, stream=stream, tool_choice="required", tools=[WEATHER], seed=seed)
        )
        assert (content, reason) == ("", "tool_calls")
        assert all(name == "get_weather" and is_weather(given) for name, given in calls)
        seen += len(calls)
    assert seen >= 2
    named = {"type": "function", "function": {"name": "get_weather"}}
    content, calls, reason = read(
        chat(client, stream=stream, tool_choice=named, parallel_tool_calls=False)
    )
    assert (content, reason, len(calls)) == ("", "tool_calls", 1)
    assert calls[0][0] == "get_weather"
    assert is_weather(calls[0][1])


def test_several_outputs_and_a_schema_for_answers(client, family):
    answer = chat(client, tool_choice="required", tools=[WEATHER], n=2, seed=5)
    assert all(choice.message.tool_calls for choice in answer.choices)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
    seen = set()
    either = {"tools": [WEATHER], "response_format": form, "parallel_tool_calls": False}
    for seed in range(3):  # a call or an answer
        content, calls, reason = said(chat(client, seed=seed, temperature=2, **either))
        assert (json.loads(content) in ("yes", "no")) if content else calls
        seen.add(reason)
    assert seen <= {"stop", "tool_calls"}


def test_answers_can_be_sent_back(client, live, family):
    answer = chat(client, tool_choice="required", tools=[WEATHER], parallel_tool_calls=False)
    message = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    with Scripted(live.llm, "Sunny."):
        last = chat(client, messages=[USER, message, result])
    assert said(last) == ("Sunny.", [], "stop")


def test_errors_name_the_tool(live):
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"type": "strin"}}}
    body = {"model": MODEL, "messages": [USER], "tools": [ADD, bad], "tool_choice": "required"}
    error = live.post("/v1/chat/completions", **body).json()["error"]
    assert "Invalid type: strin" in error["message"]
    assert error["param"] == "tools.1.function.parameters"


def test_responses(client, live, family):
    """The same calls as items, streamed and whole."""
    tools = [{"type": "function", **tool["function"]} for tool in (WEATHER,)]
    fields = {
        "model": MODEL,
        "input": "Weather?",
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "extra_body": {"seed": 1},
    }
    answer = client.responses.create(**fields, max_output_tokens=300)
    assert answer.status == "completed"
    for item in answer.output:
        assert (item.type, item.name, item.status) == ("function_call", "get_weather", "completed")
        assert is_weather(item.arguments)
    events = list(client.responses.create(**fields, max_output_tokens=300, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-1] == "response.completed"
    done = [e for e in events if e.type == "response.function_call_arguments.done"]
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert deltas == "".join(event.arguments for event in done)
    assert [item.arguments for item in events[-1].response.output] == [e.arguments for e in done]
    call = answer.output[0]
    history = [
        {"role": "user", "content": "Weather?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    with Scripted(live.llm, "Sunny."):
        last = client.responses.create(model=MODEL, input=history, tools=tools)
    assert last.output_text == "Sunny."


def test_the_form_can_be_chosen(longer):
    """And a template without tools gets them in its system message."""
    with (
        serving(longer, settings={"tool_parser": "mistral"}) as live,
        openai.OpenAI(base_url=live.url + "/v1", api_key="none") as client,
    ):
        with Scripted(live.llm, TWO["mistral"].replace("Î", "I")):
            assert len(said(chat(client))[1]) == 2
        answer = chat(client, tool_choice="required", tools=[WEATHER])
        assert len(answer.choices[0].message.tool_calls[0].id) == 9
        assert answer.usage.prompt_tokens > len(json.dumps(WEATHER["function"]))
        again = chat(client, messages=HISTORY, tool_choice="none")
        assert again.usage.prompt_tokens > len(CALL["function"]["arguments"])
    with pytest.raises(ValueError, match="tool_parser is 'x'; must be one of hermes, llama3"):
        Settings(model=MODEL, tool_parser="x")
    assert set(FORMATS) == set(TEMPLATES)

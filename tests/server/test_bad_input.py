"""Bad requests: one error object that names the field, and others go on."""

import json

import httpx
import pytest

from tests.server.live import MODEL, serving

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]


TOOL = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "g"}}


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def schema(inner):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": inner}}


def nested(levels):
    inner = {}
    for _ in range(levels):
        inner = {"items": inner}
    return inner


def called(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def error_of(response, status=400):
    """The error object, which has exactly the fields of OpenAI's."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    [(name, error)] = response.json().items()
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    assert len(response.text) < 1000
    return error


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": True}, "top_p is True"),
        ({"top_k": -2}, "top_k is -2"),
        ({"n": 0}, "n is 0"),
        ({"n": 129}, "n is 129"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 1 << 62}, "max_tokens is"),
        ({"max_tokens": 512}, "max_tokens is 512; must be 1 to 511 after a prompt of 1 tokens"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; must be 0 to max_tokens, 8"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
        ({"stop": [str(i) for i in range(5000)]}, "at most 16 items"),
        ({"stop": ["x" * 257]}, "at most 256 characters"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop is [1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0 is -1"),
        ({"logprobs": 6}, "logprobs is 6"),
        ({"logprobs": True}, "logprobs is True"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"stream_options": {"include_usage": True}}, "stream_options is there without stream"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x: no such field"),
        ({"kv": "sparse:k=1,v=1"}, "kv is 'sparse:k=1,v=1'; loaded: dense"),
        ({"kv": "/etc/passwd"}, "kv is '/etc/passwd'; loaded: dense"),
        ({"best_of": 3, "n": 4}, "best_of is 3; must be at least n, 4"),
        ({"best_of": 3, "stream": True}, "best_of is 3 with stream"),
        ({"echo": "yes"}, "echo is 'yes'"),
        ({"logit_bias": {"97": 1}}, "logit_bias has token 97; must be 0 to 96"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5 is 101"),
        ({"logit_bias": {str(i): 0 for i in range(301)}}, "at most 300 items"),
        ({"store": True}, "store is True"),
        ({"metadata": {"a": 1}}, "metadata.a is 1"),
        ({"structured_outputs": {}}, "structured_outputs has nothing; must have one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "has regex and choice"),
        ({"structured_outputs": {"regex": "x" * 5000}}, "regex has 5000 characters"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex is 5"),
        ({"structured_outputs": {"json": "{"}}, "json is not JSON"),
        ({"structured_outputs": {"guided": "a"}}, "structured_outputs.guided: no such field"),
        ({"ignore_eos": True, "structured_outputs": {"regex": "a"}}, "ignore_eos is true"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format and structured_outputs; must be one",
        ),
        ({"__class__": 1}, "__class__: no such field"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [97]}, "a token id is 97; must be an integer 0 to 96"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5] * 100_000}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompts times n is 130; must be 1 to 128"),
        ({"prompt": "x" * 512}, "the prompt has 512 tokens; must have 1 to 511"),
        ({"prompt": "x" * 6_500}, "the prompt has 6500 characters, more than 512 tokens can hold"),
        ({"prompt": "x" * 500_000}, "the prompt has 500000 characters, more than 512 tokens"),
    ],
)
def test_a_bad_field_is_named(live, fields, message):
    assert message in error_of(live.complete(**{"prompt": "x", **fields}))["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages is 'x'"),
        ({"messages": [{"role": "user"}]}, "content is missing"),
        ({"messages": [{"role": "root", "content": "x"}]}, "messages.0.role is 'root'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "x": 1}]}, "messages.0.x: no such field"),
        ({"messages": MESSAGES * 4097}, "at most 4096 items"),
        ({"messages": MESSAGES * 600}, "tokens; must have 1 to 511"),
        ({"messages": [{"role": "user", "content": "x" * 90_000}]}, "has 90000 characters"),
        ({"top_logprobs": 2}, "top_logprobs is 2 without logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens is 3 and max_completion_tok"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema is missing"),
        ({"response_format": schema({"enum": ["x" * 70_000]})}, "must have at most 65536"),
        ({"response_format": schema(nested(70))}, "json is too deep at /items/items"),
        ({"response_format": schema({"type": "strin"})}, "Invalid type: strin at #"),
        (
            {"response_format": schema({"properties": {"a": {"type": "x"}}})},
            "Invalid type: x at #/properties/a",
        ),
        (
            {"response_format": schema({"type": "integer", "minimum": 2, "maximum": 1})},
            "minimum (2) is greater than",
        ),
        ({"structured_outputs": {"regex": "(?=a)"}}, "look-around"),
        ({"structured_outputs": {"grammar": "start: x"}}, 'unknown name: "x"'),
        ({"tools": [TOOL, TOOL]}, "tools 0 and 1 are both 'f'"),
        ({"tools": [{"type": "function"}]}, "tools.0.function is missing"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [tool(nested(70))]}, "json is too deep"),
        ({"tools": [tool({"type": "x"})], "tool_choice": "required"}, "Invalid type: x"),
        ({"tool_choice": "required"}, "tool_choice is there without tools"),
        (
            {"tools": [TOOL], "tool_choice": NAMED},
            "tool_choice is 'g'; must be one of the tools: f",
        ),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice is 'some'"),
        ({"tools": [TOOL], "structured_outputs": {"regex": "a"}}, "structured_outputs with tools"),
        ({"messages": [called("{")]}, "arguments do not parse"),
        ({"messages": [called("[1]")]}, "arguments are [1]; must be a JSON object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id; must be in messages of"),
        ({"messages": [{"role": "assistant"}]}, "content is missing"),
        ({"messages": [{**called("{}"), "role": "user"}]}, "tool_calls in a message of user"),
        ({"model": 5}, "model is 5"),
    ],
)
def test_a_bad_chat_is_named(live, fields, message):
    fields = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2, **fields}
    assert message in error_of(live.post(CHAT, **fields))["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is missing"),
        (b"{", "the body is not JSON"),
        (b"[]", "the body is []"),
        (b"null", "the body"),
        (b'{"model": "\xff\xfe"}', "body"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "half of a character at 0"),
        (b'{"model": "tiny", "prompt": "x", "\\ud800": 1}', "the body is '\\ud800'"),
        (b'{"model": "tiny", "prompt": "x", "n": ' + b"9" * 5000 + b"}", "body"),
        (b'{"model": "tiny", "prompt": "x", "n": ' + b"9" * 4000 + b"}", "n is an integer of"),
        (b'{"model": "tiny", "prompt": "x", "temperature": NaN}', "temperature"),
        (b'{"model": "tiny", "prompt": "x", "temperature": 1e999}', "temperature"),
        (b"[" * 100_000, "body"),
        (b'{"a":' * 100_000, "body"),
        (b"\x00" * 100, "body"),
    ],
)
def test_what_is_not_a_request(live, body, message):
    headers = {"Content-Type": "application/json"}
    response = httpx.post(live.url + "/v1/completions", content=body, headers=headers, timeout=60)
    assert message in error_of(response)["message"]


def test_only_json_is_read(live):
    """A page from elsewhere can send plain text without being asked whether it may."""
    body = json.dumps({"model": MODEL, "prompt": "x"})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = httpx.post(
            live.url + "/v1/completions", content=body, headers={"Content-Type": kind}
        )
        error_of(response)


def test_no_such_path_method_model(live):
    error_of(live.get("/v2/models"), 404)
    error_of(live.get("/static/../app.py"), 404)
    error_of(live.get("/static/%2e%2e/app.py"), 404)
    error_of(live.get("/v1/completions"), 405)
    for name in ("gpt-4", "", "../../etc/passwd", "tiny\n"):
        error = error_of(live.complete(model=name), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_tokenize(live):
    found = live.post("/tokenize", prompt="abc").json()
    assert found == {"tokens": [68, 69, 70], "count": 3, "max_model_len": 512}
    assert live.post("/detokenize", tokens=[68, 69, 70]).json() == {"prompt": "abc"}
    chat = live.post("/tokenize", messages=MESSAGES).json()
    assert chat["count"] == len("[user]x[assistant]")
    assert "not both" in error_of(live.post("/tokenize"))["message"]
    assert "must be 0 to 96" in error_of(live.post("/detokenize", tokens=[97]))["message"]
    error_of(live.post("/tokenize", model="other", prompt="x"), 404)


def test_bodies_have_a_limit(tiny):
    with serving(tiny, settings={"api_key": None}) as live:
        limit = live.gateway.limits.body
        error = error_of(live.complete("x" * limit), 413)
        assert str(limit) in error["message"]
        chunks = (b" " * 65536 for _ in range(100))  # without a length in the header
        headers = {"Content-Type": "application/json"}
        response = httpx.post(live.url + "/v1/completions", content=chunks, headers=headers)
        error_of(response, 413)
        assert live.text()


def test_others_go_on_beside_bad_requests(live):
    expected = live.text()
    with httpx.Client(base_url=live.url, timeout=60) as client:
        body = {"model": MODEL, "prompt": "The sea", "max_tokens": 200, "temperature": 0}
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            for temperature in range(3, 20):
                error_of(live.complete(temperature=temperature))
            assert [line for line in lines if line][-1] == "data: [DONE]"
    assert live.text() == expected

"""Thousands of bodies, made from the API's own schema and then spoilt: never a 5xx."""

import asyncio
import json
import shutil
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from gossamer.server import Limits
from tests.models.adapters import save_adapter
from tests.server.from_schema import fields
from tests.server.live import MODEL, serving

PATHS = {  # path: what a body needs to be served
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"model": MODEL, "prompt": "x"},
    "/v1/responses": {"model": MODEL, "input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}
EXAMPLES = {"/v1/chat/completions": 400, "/v1/completions": 400, "/v1/responses": 150}
ODD = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 0.5, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308),
        *("", "x", "\x00", "😀", "y" * 300, "dense", MODEL),
        *([], {}, [[]], [None], ["x"] * 20, [0] * 600, {"type": "text"}),
    ]
)
ANYTHING = st.recursive(
    ODD | st.text(max_size=5) | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def adapters(tiny, tmp_path_factory):
    """A folder of folders: one that is right, two that are not."""
    home = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(tiny)
    save_adapter(home / "good", model)
    weights = save_adapter(home / "cut", model) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:900])
    (home / "empty").mkdir()
    return home


@pytest.fixture(scope="module")
def server(tiny, adapters):
    settings = {"limits": Limits(output_tokens=3, sequences=6), "lora_dir": adapters}
    with serving(tiny, settings=settings, max_loras=2, max_lora_rank=8) as live:
        yield live


@pytest.fixture(scope="module")
def send(server):
    """Into the application, past the socket."""
    transport = httpx.ASGITransport(server.server.config.app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def post(path, bodies):
        headers = {"Content-Type": "application/json"}
        calls = (client.post(path, content=b, headers=headers, timeout=60) for b in bodies)
        return await asyncio.gather(*calls)

    def send(path, *bodies):
        return asyncio.run_coroutine_threadsafe(post(path, bodies), server.events).result(60)

    return send


def fields_of(schema, path):
    """name -> strategy, from what the server says of itself."""
    content = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    name = content["schema"]["$ref"].rsplit("/", 1)[1]
    required, optional = fields(schema["components"]["schemas"][name], schema)
    return required | optional


def check(response):
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert set(response.json()) == {"error"}
        assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_no_body_is_an_error_of_the_server(server, send, path):
    known = fields_of(server.get("/openapi.json").json(), path)
    statuses, seen = set(), 0
    known.pop("model", None)  # a random one is refused before anything else is looked at
    names = st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True)
    good = names.flatmap(lambda some: st.fixed_dictionaries({name: known[name] for name in some}))
    spoilt = st.dictionaries(st.sampled_from(sorted(known)) | st.text(max_size=8), ANYTHING)

    @settings(
        max_examples=EXAMPLES.get(path, 100),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(good, spoilt)
    def run(good, spoilt):
        nonlocal seen
        base, some = PATHS[path], dict(list(spoilt.items())[:1])
        bodies = (base | good, base | good | some, base | some, spoilt)
        for response in send(path, *map(json.dumps, bodies)):
            check(response)
            statuses.add(response.status_code)
            seen += 1

    run()
    assert seen >= 400
    assert {200, 400} <= statuses
    server.assert_empty()


def test_no_grammar_is_an_error_of_the_server(server, send):
    """Fields that make grammars, together: what cannot be compiled or finished is a 400."""
    path, statuses = "/v1/chat/completions", set()
    known = fields_of(server.get("/openapi.json").json(), path)
    held = ("response_format", "structured_outputs", "tools", "logit_bias")
    more = ("tool_choice", "parallel_tool_calls", "stream", "n", "ignore_eos", "min_tokens")

    @settings(
        max_examples=120, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(held),
        st.fixed_dictionaries(
            {name: known[name] for name in held}, optional={name: known[name] for name in more}
        ),
    )
    def run(alone, fields):
        rest = {name: value for name, value in fields.items() if name not in held}
        bodies = (PATHS[path] | {alone: fields[alone]}, PATHS[path] | rest | {alone: fields[alone]})
        for response in send(path, *map(json.dumps, (*bodies, PATHS[path] | fields))):
            check(response)
            statuses.add(response.status_code)

    run()
    assert {200, 400} <= statuses
    server.assert_empty()


def test_no_adapter_is_an_error_of_the_server(server, send, adapters):
    """Names, folders, and files in them; whatever was loaded answers, and goes."""
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    path, statuses = "/v1/completions", set()
    odd = shutil.copytree(adapters / "good", adapters / "odd")
    config = json.loads((odd / "adapter_config.json").read_text())
    names = st.sampled_from(["a", "b", MODEL]) | st.text(max_size=8) | ANYTHING
    folders = st.sampled_from(["good", "cut", "empty", "odd", "./good", "odd/../good", "../good"])

    @settings(
        max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.fixed_dictionaries({"lora_name": names, "lora_path": folders | ANYTHING}),
        st.dictionaries(st.sampled_from(sorted(config)), ANYTHING, max_size=2),
        st.dictionaries(st.text(max_size=8), ANYTHING, max_size=1),
    )
    def run(body, changes, more):
        (odd / "adapter_config.json").write_text(json.dumps(config | changes))
        name = {"lora_name": body["lora_name"]}
        for path_of, sent in (
            *((load, body), (load, body | more), (load, {"lora_name": "c", "lora_path": "odd"})),
            (path, PATHS[path] | {"model": body["lora_name"]}),
            *((unload, name | more), (unload, name), (unload, {"lora_name": "c"}), (unload, more)),
        ):
            [response] = send(path_of, json.dumps(sent))
            check(response)
            statuses.add((path_of, response.status_code))

    run()
    assert {(where, status) for where in (load, unload) for status in (200, 400)} <= statuses
    server.assert_empty()


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=60), cut=st.integers(0, 60), path=st.sampled_from(sorted(PATHS)))
def test_no_bytes_are_an_error_of_the_server(send, data, cut, path):
    whole = json.dumps(PATHS[path]).encode()
    for response in send(path, data, whole[:cut] + data, whole[:cut] + data + whole[cut:]):
        check(response)


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(path=st.text(max_size=30), method=st.sampled_from(["GET", "PUT", "DELETE", "HEAD"]))
def test_no_path_is_an_error_of_the_server(server, path, method):
    transport = httpx.ASGITransport(server.server.config.app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://test")
    for url in (path, f"v1/models/{path}", f"static/{path}"):
        call = client.request(method, "/" + quote(url))
        response = asyncio.run_coroutine_threadsafe(call, server.events).result(60)
        assert response.status_code < 500

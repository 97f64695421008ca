"""Two replicas behind one address, on a Ray cluster of this machine.

One test, as workers of pytest would each start a cluster for a part of several.
"""

import inspect
import itertools
import json
import os
import random
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import torch
import yaml
from ray import serve

from gossamer.cluster import run
from gossamer.cluster.app import build
from gossamer.cluster.config import ClusterConfig
from gossamer.server.settings import Limits, Settings
from tests.cluster.live import Cluster
from tests.engine.serving import cpu_llm, tiny_with_tokenizer
from tests.server import test_openai_client
from tests.server.live import MODEL, SPARSE, wait_until

REQUESTS, CLIENTS, KILLED_AFTER = 200, 16, 60
PREFIXES, EACH = 6, 10
RETRYABLE = {503, 429}
EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.yaml"


@pytest.fixture
def cluster(tmp_path):
    model = os.environ.get("GOSSAMER_TEST_MODEL")  # smollm2, say; takes minutes
    if model is None:
        torch.manual_seed(11)
        path = tmp_path / "tiny"
        path.mkdir()
        tiny_with_tokenizer(path, head_dim=32, max_position_embeddings=1024)
        model = str(path)
    caches = ("dense", SPARSE)
    config = ClusterConfig(
        model=model,
        caches=caches,
        engine={"device": "cpu", "dtype": "float32", "kv_memory": "64MB"},
        settings=Settings(model=MODEL, limits=Limits(drain=2)),
        replicas=2,
        cpus=0.5,
    )
    llms = {kv: cpu_llm(model, kv=kv) for kv in caches}
    try:
        yield Cluster(config, llms)
    finally:
        run.end()
        for llm in llms.values():
            llm.close()


def test_two_replicas(cluster):
    the_client_notices_nothing(cluster)
    a_prefix_stays_with_its_replica(cluster)
    one_output_of_several_ends(cluster)
    grammars_and_tools_reach_replicas(cluster)
    who_leaves_costs_nothing(cluster)
    a_replica_dies_under_load(cluster)
    an_update_under_load(cluster)
    the_example_can_be_built()


def the_client_notices_nothing(cluster):
    """The tests of the official client, which know one process."""
    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0) as client:
        given = {"client": client, "live": cluster}
        for name, test in inspect.getmembers(test_openai_client, inspect.isfunction):
            if not name.startswith("test_"):
                continue
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            axes = [[(mark.args[0], value) for value in mark.args[1]] for mark in marks]
            wanted = {n: v for n, v in given.items() if n in inspect.signature(test).parameters}
            for values in itertools.product(*axes):
                test(**wanted, **dict(values))


def a_prefix_stays_with_its_replica(cluster):
    shares = []
    for number in range(PREFIXES):
        prefix, before = f"{number} is where it begins. " * 8, cluster.served()
        with ThreadPoolExecutor(4) as clients:
            prompts = [f"{prefix}{i}" for i in range(EACH)]
            answers = clients.map(lambda p: cluster.complete(p, max_tokens=2), prompts)
            assert all(answer.status_code == 200 for answer in answers)
        counts = {name: n - before[name] for name, n in cluster.served().items()}
        assert sum(counts.values()) == EACH
        shares.append(max(counts.values()) / EACH)
    assert sum(shares) / len(shares) >= 0.8, shares


def one_output_of_several_ends(cluster):
    """By a stop string, which is the API's to find, so that their replica has to be told."""
    fields = {"n": 3, "seed": 1, "temperature": 1.5, "max_tokens": 400, "stop": [*"aeiourst"]}
    answer = cluster.complete("The sea", **fields)
    assert {choice["finish_reason"] for choice in answer.json()["choices"]} == {"stop"}
    wait_until(lambda: cluster.stats()["in_flight"] == 0)


def grammars_and_tools_reach_replicas(cluster):
    """Both ways of an answer: whole and streamed."""
    call = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}}
    call["parameters"] |= {"required": ["a"], "additionalProperties": False}
    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0) as client:
        ask = partial(client.chat.completions.create, model=MODEL, max_tokens=120, seed=1)
        ask = partial(ask, messages=[{"role": "user", "content": "Go on"}], temperature=1)
        schema = {"name": "s", "schema": {"enum": ["yes", 7]}}
        form = {"type": "json_schema", "json_schema": schema}
        assert ask(response_format=form).choices[0].message.content in ('"yes"', "7")
        chunks = ask(extra_body={"structured_outputs": {"regex": "[0-9]{3}"}}, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert re.fullmatch("[0-9]{3}", text)
        tools = {"tools": [{"type": "function", "function": call}], "tool_choice": "required"}
        answer = ask(**tools, parallel_tool_calls=False).choices[0]
        [called] = answer.message.tool_calls
        assert (answer.finish_reason, called.function.name) == ("tool_calls", "f")
        assert json.loads(called.function.arguments) in ({"a": 1}, {"a": 2})
        with pytest.raises(openai.BadRequestError, match="Invalid type: strin at #"):
            ask(extra_body={"structured_outputs": {"json": {"type": "strin"}}})


def an_update_under_load(cluster):
    """All replicas are replaced; whoever asks meanwhile gets an answer."""
    before, done = {process.pid for process in cluster.replicas()}, threading.Event()
    expected = {p: cluster.offline(p, max_tokens=24).outputs[0].text for p in ("The sea", "Once")}

    def ask(prompt):
        count = 0
        while not done.is_set():
            answer = cluster.complete(prompt, max_tokens=24)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["text"] == expected[prompt]
            count += 1
        return count

    with ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(ask, prompt) for prompt in [*expected] * 2]
        try:
            cluster.update()
        finally:
            done.set()
        assert all(each.result() > 0 for each in asked)
    wait_until(lambda: not before & {process.pid for process in cluster.replicas()}, 60)
    assert cluster.complete("The sea", max_tokens=2).status_code == 200


def the_example_can_be_built():
    """As Ray Serve does with a config file."""
    [described] = yaml.safe_load(EXAMPLE.read_text())["applications"]
    assert described["import_path"] == "gossamer.cluster.app:build"
    built = build(described["args"] | {"cpus": 0.5})
    assert isinstance(built, serve.Application)


def who_leaves_costs_nothing(cluster):
    """A client that disconnects ends its request where it is computed."""
    before = cluster.outcomes()["abort"]
    body = {"model": MODEL, "prompt": "The sky", "max_tokens": 480, "ignore_eos": True}
    for _ in range(4):
        url = cluster.url + "/v1/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as stream:
            next(stream.iter_lines())
    wait_until(lambda: cluster.stats()["in_flight"] == 0)
    assert cluster.outcomes()["abort"] > before


def a_replica_dies_under_load(cluster):
    prompts = [f"{random.choice('abcd') * 70} {i % 20}" for i in range(REQUESTS)]
    expected = {p: cluster.offline(p, max_tokens=24).outputs[0].text for p in set(prompts)}
    victim, again = random.choice(cluster.replicas()), []

    def ask(prompt):
        while True:  # as a client does whose request may be sent again
            answer = cluster.complete(prompt, max_tokens=24)
            if answer.status_code not in RETRYABLE:
                return prompt, answer
            assert answer.json()["error"]["code"] in ("engine_down", "queue_full")
            again.append(prompt)
            time.sleep(0.2)

    with ThreadPoolExecutor(CLIENTS) as clients:
        asked = [clients.submit(ask, prompt) for prompt in prompts]
        for count, done in enumerate(as_completed(asked)):
            prompt, answer = done.result()
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["text"] == expected[prompt]
            if count == KILLED_AFTER:
                os.kill(victim.pid, signal.SIGKILL)
    assert len(again) < CLIENTS / 2  # nearly all go on elsewhere without their client's help
    assert not psutil.pid_exists(victim.pid) or victim.status() == psutil.STATUS_ZOMBIE
    wait_until(lambda: cluster.stats()["replicas"] == 2, 60)
    assert len(cluster.served()) == 2

"""Two replicas behind one address, on a Ray cluster of this machine.

One test, as workers of pytest would each start a cluster for a part of several.
"""

import inspect
import itertools
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import openai
import psutil
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from gossamer.cluster import run
from gossamer.cluster.config import ClusterConfig
from gossamer.engine import SamplingParams
from gossamer.server.settings import Limits, Settings
from tests.engine.serving import cpu_llm, tiny_with_tokenizer
from tests.server import test_openai_client
from tests.server.live import MODEL, SPARSE, wait_until

REQUESTS, CLIENTS, KILLED_AFTER = 200, 16, 60
PREFIXES, EACH = 6, 10
RETRYABLE = {503, 429}


class Cluster:
    """What tests of the client need of a server, and its replicas. llms: to compare with."""

    def __init__(self, url, llms):
        self.url, self.llms = url, llms

    def offline(self, prompt, kv="dense", **settings):
        params = SamplingParams(**{"temperature": 0, "ignore_eos": True, **settings})
        return self.llms[kv].generate([prompt], params)[0]

    def complete(self, prompt, **fields):
        body = {"model": MODEL, "temperature": 0, "ignore_eos": True, "prompt": prompt, **fields}
        return httpx.post(self.url + "/v1/completions", json=body, timeout=60)

    def stats(self):
        return httpx.get(self.url + "/v1/gossamer/stats", timeout=30).json()

    def served(self):
        """Prompts that each replica has answered."""
        text = httpx.get(self.url + "/metrics", timeout=30).text
        families = {f.name: f for f in text_string_to_metric_families(text)}
        counts = dict.fromkeys(
            (s.labels["replica"] for s in families["gossamer_steps"].samples), 0.0
        )
        for sample in families["gossamer_requests"].samples:
            counts[sample.labels["replica"]] += sample.value
        return counts

    def outcomes(self):
        """How prompts ended, on all replicas."""
        text = httpx.get(self.url + "/metrics", timeout=30).text
        families = {f.name: f for f in text_string_to_metric_families(text)}
        counts = Counter()
        for sample in families["gossamer_requests"].samples:
            counts[sample.labels["outcome"]] += sample.value
        return counts

    @staticmethod
    def replicas():
        """Processes of the engines."""
        found = psutil.Process().children(recursive=True)
        return [p for p in found if "ServeReplica:gossamer:engine" in "".join(p.cmdline()[:1])]


@pytest.fixture
def cluster(tmp_path):
    model = os.environ.get("GOSSAMER_TEST_MODEL")  # smollm2, say; takes minutes
    if model is None:
        torch.manual_seed(11)
        path = tmp_path / "tiny"
        path.mkdir()
        tiny_with_tokenizer(path, head_dim=32)
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
        yield Cluster(run.start(config, "127.0.0.1", 0), llms)
    finally:
        run.end()
        for llm in llms.values():
            llm.close()


def test_two_replicas(cluster):
    the_client_notices_nothing(cluster)
    a_prefix_stays_with_its_replica(cluster)
    one_output_of_several_ends(cluster)
    who_leaves_costs_nothing(cluster)
    a_replica_dies_under_load(cluster)


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

"""An application on a Ray cluster of this machine, with what tests ask of it."""

from collections import Counter
from dataclasses import replace

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from gossamer.cluster import run
from gossamer.cluster.app import application
from gossamer.engine import SamplingParams
from tests.server.live import MODEL


class Cluster:
    """What tests of the client need of a server, and its replicas. llms: to compare with."""

    def __init__(self, config, llms):
        self.config, self.llms = config, llms
        self.url = run.start(config, "127.0.0.1", 0)

    def update(self):
        """As `serve deploy` after a change of the file; returns when it is done."""
        limits = replace(self.config.settings.limits, queue=100)
        settings = replace(self.config.settings, limits=limits)
        new = application(replace(self.config, settings=settings))
        serve.run(new, name=run.NAME, route_prefix="/")

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

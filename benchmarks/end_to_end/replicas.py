"""Two replicas on Ray: do prefixes stay with one, what does a death cost, and what does Ray cost?

    python -m benchmarks.end_to_end.replicas --results benchmarks/serving

Starts `gossamer serve --ray` in this process, sends prompts that share prefixes, then a load in
the middle of which one replica gets SIGKILL, and compares every greedy answer with those of an
engine alone. Prints a record, and adds it to `replicas.jsonl` with --results. Exit code 1 if an
answer is wrong or missing, or the replica does not come back.
"""

import json
import os
import signal
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import psutil
import ray
import typer
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.end_to_end.soak import TEXT
from gossamer._version import __version__
from gossamer.bench.record import revision
from gossamer.cluster import run
from gossamer.cluster.config import ClusterConfig
from gossamer.engine import LLM, SamplingParams
from gossamer.server.settings import Settings

OUTPUT, CLIENTS = 16, 16  # tokens of an answer; open requests
PREFIX_WORDS, QUESTION_WORDS = 120, 12
PREFIXES, EACH = 8, 12
RETRIES = (429, 503)
PATIENCE = 120.0  # seconds for a replica to come back


@dataclass(frozen=True)
class Server:
    url: str
    model: str

    def answer(self, prompt: str) -> tuple[str, int]:
        """The text, and how often the request was sent again, as the server allows."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0}
        for tries in range(100):
            response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=300)
            if response.status_code not in RETRIES:
                response.raise_for_status()
                return str(response.json()["choices"][0]["text"]), tries
            time.sleep(0.2)
        raise RuntimeError(f"refused a hundred times: {response.text}")

    def answered(self) -> dict[str, float]:
        """Prompts by replica."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        steps, requests = families["gossamer_steps"], families["gossamer_requests"]
        counts = {sample.labels["replica"]: 0.0 for sample in steps.samples}
        for sample in requests.samples:
            counts[sample.labels["replica"]] += sample.value
        return counts

    def replicas(self) -> int:
        return int(httpx.get(f"{self.url}/v1/gossamer/stats", timeout=60).json()["replicas"])


def texts(count: int, words: int, skip: int) -> list[str]:
    found = TEXT.read_text().split()[skip:]
    return [" ".join(found[i * words : (i + 1) * words]) for i in range(count)]


def processes(kind: str) -> list[psutil.Process]:
    """Of replicas of a deployment, or Ray's proxy."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if kind in "".join(process.cmdline()[:1])]


def cpu_seconds(kinds: Iterable[str]) -> float:
    times = [process.cpu_times() for kind in kinds for process in processes(kind)]
    return float(sum(each.user + each.system for each in times))


def stickiness(server: Server, clients: ThreadPoolExecutor) -> float:
    """Mean share of the prompts of a prefix that its most frequent replica got."""
    shares = []
    questions = texts(EACH, QUESTION_WORDS, 4000)
    for prefix in texts(PREFIXES, PREFIX_WORDS, 0):
        before = server.answered()
        list(clients.map(server.answer, [f"{prefix} {question}" for question in questions]))
        counts = {name: count - before[name] for name, count in server.answered().items()}
        shares.append(max(counts.values()) / sum(counts.values()))
    return statistics.mean(shares)


def death(
    server: Server, clients: ThreadPoolExecutor, prompts: Sequence[str]
) -> tuple[list[tuple[str, int]], float]:
    """Answers to all prompts, and seconds until the replica that was killed is replaced."""
    asked = [clients.submit(server.answer, prompt) for prompt in prompts]
    asked[len(asked) // 3].result()
    os.kill(processes("ServeReplica:gossamer:engine")[0].pid, signal.SIGKILL)
    begin = time.monotonic()
    while server.replicas() == 2:  # it is not known yet
        time.sleep(0.05)
    while server.replicas() < 2 and time.monotonic() - begin < PATIENCE:
        time.sleep(0.2)
    seconds = time.monotonic() - begin
    return [each.result() for each in asked], seconds


def replicas(
    model: Annotated[str, typer.Option(help="as for `gossamer serve`")] = "smollm2",
    kv: Annotated[str, typer.Option("--kv")] = "coded:23.5%",
    requests: Annotated[int, typer.Option(help="Number of requests of the load")] = 200,
    cpus: Annotated[float, typer.Option(help="CPU cores of a replica")] = 1.0,
    results: Annotated[Path | None, typer.Option(metavar="DIR")] = None,
) -> None:
    engine: dict[str, Any] = {"device": "cpu", "kv_memory": "256MB"}
    prompts = texts(requests, 24, 8000)
    with LLM(model, kv=kv, **engine) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=OUTPUT)
        expected = [o.outputs[0].text for o in llm.generate(prompts, greedy)]
    settings = Settings(model=model)
    config = ClusterConfig(
        model=model, caches=(kv,), engine=engine, settings=settings, replicas=2, cpus=cpus
    )
    try:
        server = Server(run.start(config, "127.0.0.1", 0), model)
        with ThreadPoolExecutor(CLIENTS) as clients:
            share = stickiness(server, clients)
            before = cpu_seconds(("ServeReplica:gossamer:api", "ProxyActor"))
            begin = time.perf_counter()
            quiet = [text for text, _ in clients.map(server.answer, prompts)]
            seconds = time.perf_counter() - begin
            api = cpu_seconds(("ServeReplica:gossamer:api", "ProxyActor")) - before
            found, back = death(server, clients, prompts)
        alive = server.replicas()
    finally:
        run.end()
    again = [tries for _, tries in found]
    record = {
        "what": "replicas",
        "model": model,
        "kv": kv,
        "replicas": alive,
        "cpus_per_replica": cpus,
        "share_of_a_prefix_on_one_replica": round(share, 3),
        "requests": requests,
        "right_without_a_death": sum(map(str.__eq__, quiet, expected)),
        "requests_per_second": round(requests / seconds, 2),
        "api_cpu_ms_per_request": round(1e3 * api / requests, 2),
        "right_with_a_death": sum(text == e for (text, _), e in zip(found, expected, strict=True)),
        "sent_again_by_clients": sum(map(bool, again)),
        "seconds_until_replaced": round(back, 1),
        "versions": {"gossamer": __version__, "ray": ray.__version__},
        "revision": revision(),
    }
    print(json.dumps(record))
    if results is not None:
        with (results / "replicas.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
    right = record["right_without_a_death"], record["right_with_a_death"], alive
    if right != (requests, requests, 2):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(replicas)

"""`gossamer serve` as a process: it starts, is killed, starts again, and stops in order."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gossamer.cli.main import app
from tests.server.live import wait_until

httpx = pytest.importorskip("httpx", reason="pip install 'gossamer[serve]'")
pytest.importorskip("fastapi", reason="pip install 'gossamer[serve]'")

SPARSE = "sparse:k=16,v=16"
SMALL = ("--device", "cpu", "--kv-memory", "64MB")


class Process:
    """A server; `log` is what it has written so far."""

    def __init__(self, *arguments):
        self.log, self._ready = "", threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gossamer.cli.main", "serve", *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        assert self._ready.wait(90), self.log
        found = re.search(r"listening on (http://\S+)", self.log)
        assert found, self.log
        self.url = found[1]

    def _read(self):
        for line in self._process.stderr:
            self.log += line
            if "listening on" in line:
                self._ready.set()
        self._ready.set()

    def send(self, number):
        self._process.send_signal(number)

    def wait(self):
        return self._process.wait(60)

    def relatives(self):
        """Processes of its session: itself, and whatever it started."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self._process.pid and fields[0] != "Z":
                found.append(stat.parent.name)
        return found

    def end(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(30)


@pytest.fixture
def start(words):
    started = []

    def start(*arguments):
        started.append(Process(words, *SMALL, *arguments))
        return started[-1]

    yield start
    for process in started:
        process.end()


def stream(server, tokens):
    body = {"model": "words", "prompt": "w1 w2", "max_tokens": tokens, "stream": True}
    body |= {"temperature": 0, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        yield from (line for line in answer.iter_lines() if line)


def test_killed_started_again_and_stopped(start, tmp_path):
    frontier = tmp_path / "best.json"
    frontier.write_text(json.dumps({"kv": SPARSE, "model": "words"}))
    first = start("--port", 0)
    lines = stream(first, 400)
    next(lines)
    first.send(signal.SIGKILL)
    with pytest.raises(httpx.HTTPError):
        list(lines)
    first.wait()
    wait_until(lambda: first.relatives() == [])

    port = first.url.rsplit(":", 1)[1]
    second = start("--port", port, "--kv", frontier, "--compare", "dense")
    assert second.url == first.url
    stats = httpx.get(second.url + "/v1/gossamer/stats").json()
    assert [engine["kv"] for engine in stats["engines"]] == [SPARSE, "dense"]
    lines = stream(second, 400)
    next(lines)
    assert len(second.relatives()) >= 3  # itself, the engine and the API
    second.send(signal.SIGTERM)
    *chunks, done = lines
    assert done == "data: [DONE]"
    assert '"finish_reason": "length"' in chunks[-1]
    assert second.wait() == 0
    # On a busy machine the last tokens may be on their way already.
    assert re.search("stopping; [01] prompts are running", second.log)
    assert second.log.rstrip().endswith("stopped")
    assert "w1 w2" not in second.log


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kv", "spares"), "KV spec 'spares'"),
        (("--compare", "dense:fp32"), "--compare is 'dense:fp32', the same as --kv"),
        (("--compare", "nowhere.json"), "nowhere.json"),
        (("--max-queue", "-1"), "queue is -1; must be at least 0"),
        (("--timeout", "0"), "timeout is 0.0; must be at least 0.001"),
        (("--max-body", "much"), "--max-body is 'much'; must be positive bytes"),
        (("--max-num-seqs", "0"), "max_num_seqs is 0"),
        (
            ("--tensor-parallel-size", "2", "--launcher", "torchrun"),
            "--launcher is torchrun; must be spawn or ray",
        ),
        (("--replicas", "2"), "--replicas, --max-replicas, --cpus-per-rank and --ray-address need"),
        (("--kv-role", "prefill"), "kv_role is 'prefill' without kv_transfer, a folder"),
        (("--api-key", "a b"), "the API key must be ASCII"),
        (("--api-keys", "nowhere.toml"), "nowhere.toml"),
        (("--log-format", "xml"), "log_format is 'xml'; must be one of text, json"),
        (("--lora", "x"), "--lora is 'x'; must be NAME=DIR"),
        (("--lora", "words=/x"), "--lora has 'words', the model's own name"),
        (("--lora-dir", "."), "--lora-dir needs --max-loras"),
        (("--served-model-name", "a\nb"), r"model is 'a\nb'; must be 1 to 200 printable"),
        (("--host", "256.1.1.1"), "256.1.1.1:8000 cannot be served"),
    ],
)
def test_bad_options_are_named(words, arguments, message):
    result = CliRunner().invoke(app, ["serve", str(words), *SMALL, *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_port_that_is_taken():
    """Which is known before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "nowhere", "--port", port])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port} cannot be served: Address already in use" in result.output


def children(server, name):
    """Process ids of its engine or of its API processes."""
    return [int(pid) for pid in re.findall(rf"{name}.*?: process (\d+) is ready", server.log)]


def test_processes_that_die(start):
    """What was open is told, readiness says so, and a new process takes the old one's place."""
    server = start("--port", 0, "--api-workers", 2)
    client = httpx.Client(base_url=server.url, timeout=60)  # one connection, to one API process
    lines = stream(server, 400)
    next(lines)
    (engine,), apis = children(server, "engine"), children(server, "api")
    assert len(apis) == 2
    os.kill(engine, signal.SIGKILL)
    *_, error, done = lines
    assert (json.loads(error.removeprefix("data: "))["error"]["code"], done) == (
        "engine_down",
        "data: [DONE]",
    )
    wait_until(lambda: client.get("/ready").json() == {"status": "down"}, 10)
    assert client.get("/health").status_code == 200
    wait_until(lambda: client.get("/ready").status_code == 200, 60)
    assert list(stream(server, 5))[-1] == "data: [DONE]"

    for api in apis:
        os.kill(api, signal.SIGKILL)
    wait_until(lambda: len(children(server, "api")) == 4, 60)
    assert list(stream(server, 5))[-1] == "data: [DONE]"

    os.kill(children(server, "engine")[-1], signal.SIGSTOP)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as late:
            for path in ("/health", "/ready"):  # only a restart helps
                answer = late.get(path)
                assert (answer.status_code, answer.json()) == (503, {"status": "silent"})
            assert late.get("/metrics").json()["error"]["code"] == "engine_silent"
    finally:
        os.kill(children(server, "engine")[-1], signal.SIGCONT)
    with httpx.Client(base_url=server.url, timeout=60) as late:
        assert late.get("/health").status_code == 200
        assert late.get("/v1/gossamer/stats").json()["in_flight"] == 0
    os.kill(
        children(server, "engine")[-1], signal.SIGKILL
    )  # the fourth: something is wrong for good
    assert server.wait() == 1
    assert "that was death 4 within 600 s; stopping" in server.log
    wait_until(lambda: server.relatives() == [])


def test_a_limit_holds_over_api_processes(start, tmp_path):
    """64 clients on two of them have what a minute has, together."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[a]\nkey = "a"\nrequests_per_minute = 20\n[b]\nkey = "b"')
    server = start("--port", 0, "--api-workers", 2, "--api-keys", keys)
    body = {"model": "words", "prompt": "w1 w2", "max_tokens": 2, "temperature": 0}

    with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(64) as pool:

        def ask(key):
            headers = {"Authorization": f"Bearer {key}"}
            return client.post("/v1/completions", json=body, headers=headers)

        answers = list(pool.map(ask, ["a", "b"] * 64))
    codes = Counter((i % 2, answer.status_code) for i, answer in enumerate(answers))
    assert codes == {(0, 200): 20, (0, 429): 44, (1, 200): 64}
    wait_until(lambda: {*re.findall(r"INFO (api \d): \S+ POST", server.log)} == {"api 0", "api 1"})


def test_stopped_while_nothing_is_ready(start):
    """An API process that waits for an engine has nothing to finish."""
    server = start("--port", 0)
    for name in ("engine", "api"):
        os.kill(children(server, name)[0], signal.SIGKILL)
    wait_until(lambda: "api 0 ended with exit code -9" in server.log)
    server.send(signal.SIGTERM)
    assert server.wait() == 0
    wait_until(lambda: server.relatives() == [])

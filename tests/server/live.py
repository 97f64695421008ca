"""Servers in this process: on a real socket in a thread, or called directly."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from gossamer.engine import LLM, RequestOutput, SamplingParams
from gossamer.server import Gateway, Settings, create_app
from gossamer.server.host import EngineHost
from gossamer.server.sockets import address, bind
from gossamer.server.uvicorn_server import Server
from tests.engine.serving import assert_empty, cpu_llm

MODEL = "tiny"
SPARSE = "sparse:k=8,v=8"


class Live:
    """A server that listens. llms: its engines, by cache."""

    def __init__(self, server: Server, app: Any, llms: dict[str, LLM], url: str) -> None:
        self.server, self.llms, self.url = server, llms, url
        self.host: EngineHost = app.state.host
        self.gateway: Gateway = app.state.context.gateway
        self.events = app.state.events

    @property
    def llm(self) -> LLM:
        return next(iter(self.llms.values()))

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60)

    def complete(self, prompt: Any = "The sea", **fields: Any) -> httpx.Response:
        fields = {"model": MODEL, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        return self.post("/v1/completions", prompt=prompt, **fields)

    def text(self, prompt: Any = "The sea", **fields: Any) -> str:
        answer = self.complete(prompt, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    def offline(self, prompt: Any, kv: str = "dense", **settings: Any) -> RequestOutput:
        """What LLM.generate gives; the server's thread must not be in the engine meanwhile."""
        params = SamplingParams(**{"temperature": 0, "ignore_eos": True, **settings})
        return self.host.loop.call(lambda: self.llms[kv].generate([prompt], params)[0]).result(60)

    def assert_empty(self) -> None:
        """Soon, nothing runs and no page is in use."""
        wait_until(lambda: self.gateway.in_flight == self.host.state().in_flight == 0)
        wait_until(lambda: not any(llm.engine.busy for llm in self.llms.values()))
        for llm in self.llms.values():
            assert_empty(llm)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


@contextmanager
def serving(
    model: Any, caches: tuple[str, ...] = ("dense",), settings: Any = None, **options: Any
) -> Iterator[Live]:
    """A tiny model on a free port; must be empty in the end."""
    llms = {kv: cpu_llm(model, kv=kv, **options) for kv in caches}
    app = create_app(llms, Settings(model=MODEL, **(settings or {})))
    (listening,) = bind("127.0.0.1", 0)
    server = Server(app, listening)

    async def serve() -> None:
        app.state.events = asyncio.get_running_loop()
        await server.serve()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    live = Live(server, app, llms, address(listening))
    try:
        yield live
        live.assert_empty()
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


class SlowSteps:
    """Each step of an engine takes at least so long, or waits for `gate`."""

    def __init__(self, llm: LLM, seconds: float = 0.0) -> None:
        self._executor, self._run = llm.engine.executor, llm.engine.executor.run
        self.seconds, self.gate = seconds, threading.Event()
        self.gate.set()

    def __enter__(self) -> "SlowSteps":
        def run(step: Any) -> Any:
            self.gate.wait(30)
            time.sleep(self.seconds)
            return self._run(step)

        self._executor.run = run
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._executor.run = self._run

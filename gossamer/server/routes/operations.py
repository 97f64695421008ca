"""/health, /metrics, /v1/gossamer/stats and the profiler."""

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from gossamer._version import __version__
from gossamer.kv.speed import DecodeSpeed
from gossamer.profiling import Recorder
from gossamer.server.context import Context, context_of
from gossamer.server.errors import APIError
from gossamer.server.snapshot import Pages

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> Response:
    status = context_of(request).gateway.status
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    text = context_of(request).gateway.metrics.text()
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/gossamer/stats")
async def stats(request: Request) -> dict[str, Any]:
    context = context_of(request)
    gateway = context.gateway
    return {
        "model": context.settings.model,
        "version": __version__,
        "status": gateway.status,
        "uptime_seconds": time.time() - gateway.started,
        "in_flight": gateway.in_flight,
        "queue_limit": gateway.limits.queue,
        "vocab_size": next(iter(gateway.engines.values())).built.source.config.vocab_size,
        "chat": bool(getattr(gateway.tokens.tokenizer, "chat_template", None)),
        "engines": [_engine(context, name) for name in gateway.engines],
    }


def _engine(context: Context, name: str) -> dict[str, Any]:
    gateway = context.gateway
    engine, seen = gateway.engines[name], gateway.loop.snapshots[name]
    return {
        "kv": name,
        "device": str(engine.built.device),
        "dtype": str(engine.built.dtype).removeprefix("torch."),
        "max_model_len": engine.built.max_model_len,
        "max_num_seqs": engine.config.max_num_seqs,
        "running": seen.running,
        "waiting": seen.waiting,
        "tokens_per_second": gateway.loop.rates[name](),
        "kv_bytes": seen.kv_bytes,
        "kv_bytes_dense": seen.kv_bytes_dense,
        "decode": _decode(engine.built.speed),
        "stored_pages": _pages(seen.stored),
        "dense_pages": _pages(seen.dense),
        "steps": seen.steps,
        "prompt_tokens": seen.prompt_tokens,
        "cached_tokens": seen.cached_tokens,
        "output_tokens": seen.output_tokens,
        "preemptions": seen.preemptions,
    }


def _decode(speed: DecodeSpeed | None) -> dict[str, Any] | None:
    """The kernel, and how many times as fast as dense it is; None where that is not known."""
    if speed is None:
        return None
    return {**asdict(speed), "against_dense": speed.against_dense}


def _pages(pages: Pages) -> dict[str, int]:
    return {
        "used": pages.used,
        "cached": pages.cached,
        "free": pages.free,
        "total": pages.total,
        "bytes_each": pages.bytes_each,
    }


@router.post("/v1/gossamer/profiler/start")
async def start_profiler(request: Request) -> dict[str, str]:
    return {"status": await _profile(request, "start")}


@router.post("/v1/gossamer/profiler/stop")
async def stop_profiler(request: Request) -> dict[str, str]:
    return {"trace": await _profile(request, "stop")}


async def _profile(request: Request, action: str) -> str:
    profiler: Profiler | None = request.app.state.profiler
    if profiler is None:
        raise APIError(404, "the profiler is off; start the server with --profiles FOLDER")
    call = profiler.start if action == "start" else profiler.stop
    try:
        return await asyncio.wrap_future(context_of(request).gateway.loop.call(call))
    except RuntimeError as error:
        raise APIError(409, str(error)) from None


class Profiler:
    """Used in the engines' thread: torch records what the calling thread does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._recorder = Recorder(memory=False)

    def start(self) -> str:
        """RuntimeError if it runs already."""
        self._recorder.start()
        return "running"

    def stop(self) -> str:
        """Write a trace for chrome://tracing or Perfetto; its name. RuntimeError if none runs."""
        recording = self._recorder.stop()
        name = f"trace-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}.json"
        recording.write_trace(self._folder / name)
        return name

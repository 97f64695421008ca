"""/health, /ready, /metrics, /v1/gossamer/stats and the profiler."""

import time
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from gossamer._version import __version__
from gossamer.kv.speed import DecodeSpeed
from gossamer.server.context import context_of
from gossamer.server.errors import APIError
from gossamer.server.info import EngineInfo
from gossamer.server.snapshot import EngineState, HostState, Pages

router = APIRouter()
PROFILER_SECONDS = 120.0  # a trace of many steps takes its time to write


@router.get("/health")
async def health(request: Request) -> Response:
    """Liveness: 503 for what only a restart helps against. An engine that ended is loaded again."""
    status = await context_of(request).gateway.status()
    return JSONResponse({"status": status}, 503 if status in ("failing", "silent") else 200)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Readiness: 200 if requests are answered."""
    status = await context_of(request).gateway.status()
    return JSONResponse({"status": status}, 200 if status == "ok" else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    text = await context_of(request).gateway.call("metrics")
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/gossamer/stats")
async def stats(request: Request) -> dict[str, Any]:
    context = context_of(request)
    gateway = context.gateway
    state: HostState = await gateway.call("state")
    return {
        "model": context.settings.model,
        "version": __version__,
        "status": gateway.status_of(state),
        "uptime_seconds": time.time() - gateway.info.started,
        "in_flight": state.in_flight,
        "replicas": state.replicas,
        "queue_limit": gateway.limits.queue,
        "vocab_size": next(iter(gateway.engines.values())).vocab_size,
        "chat": bool(getattr(gateway.tokens.tokenizer, "chat_template", None)),
        "engines": [
            _engine(name, info, state.engines[name]) for name, info in gateway.engines.items()
        ],
    }


def _engine(name: str, info: EngineInfo, state: EngineState) -> dict[str, Any]:
    seen = state.seen
    return {
        "kv": name,
        "device": info.device,
        "dtype": info.dtype,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_num_seqs,
        "running": seen.running,
        "waiting": seen.waiting,
        "tokens_per_second": state.tokens_per_second,
        "kv_bytes": seen.kv_bytes,
        "kv_bytes_dense": seen.kv_bytes_dense,
        "decode": _decode(info.speed),
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
    context_of(request).check_admin(request)
    gateway = context_of(request).gateway
    if not gateway.info.profiler:
        raise APIError(404, "the profiler is off; start the server with --profiles FOLDER")
    return str(await gateway.call(f"{action}_profiler", seconds=PROFILER_SECONDS))

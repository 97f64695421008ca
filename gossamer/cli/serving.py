"""What `gossamer serve` does, apart from its command line."""

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer.cli.runs import loaded
from gossamer.engine import LLM, EngineConfig, SamplingParams
from gossamer.engine.config import parse_bytes
from gossamer.engine.kv_cache import parse_kv
from gossamer.models import EMBEDDED

log = logging.getLogger("gossamer.server")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WARM_UP = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@dataclass(frozen=True)
class Job:
    """Engines, one per cache, and how they are served. See gossamer.cli.serve."""

    model: str
    caches: list[str]
    host: str
    port: int
    name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    max_queue: int = 256
    max_output_tokens: int | None = None
    max_body: str = "1MiB"
    timeout: float = 600.0
    drain: float = 30.0
    profiles: Path | None = None
    log_prompts: bool = False
    engine: dict[str, Any] = field(default_factory=dict)


def run(job: Job) -> None:
    """Serve until told to stop. Raises ValueError, OSError, ImportError for what cannot be."""
    try:
        from gossamer.server.app import create_app  # noqa: PLC0415
        from gossamer.server.settings import Limits, Settings  # noqa: PLC0415
        from gossamer.server.uvicorn_server import bind, serve  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(f"the server needs {error.name}: pip install 'gossamer[serve]'") from None
    settings = Settings(**_settings(job), limits=Limits(**_limits(job)))
    check(job)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with bind(job.host, job.port) as listening, ExitStack() as stack:
        engines = {
            kv: stack.enter_context(loaded(job.model, kv=kv, **job.engine)) for kv in job.caches
        }
        for kv, llm in engines.items():
            _tell(kv, llm)
            _warm_up(llm)
        serve(create_app(engines, settings), listening)


def _settings(job: Job) -> dict[str, Any]:
    return {
        "model": job.name or served_name(job.model),
        "api_key": job.api_key,
        "origins": job.origins,
        "hosts": (*LOOPBACK, *map(str.lower, job.hosts)) if job.host in LOOPBACK else (),
        "profiles": job.profiles,
        "log_prompts": job.log_prompts,
    }


def _limits(job: Job) -> dict[str, Any]:
    return {
        "queue": job.max_queue,
        "body": parse_bytes("--max-body", job.max_body),
        "output_tokens": job.max_output_tokens,
        "timeout": job.timeout,
        "drain": job.drain,
    }


def served_name(model: str) -> str:
    """As requests call the model: the built-in name, or that of the folder or file."""
    return model if model in EMBEDDED else Path(model).resolve().name


def check(job: Job) -> None:
    """What the second cache needs; better known before weights load."""
    if len(job.caches) == 1:
        return
    known = ("dtype", "device")
    config = EngineConfig(
        model=job.model, **{name: job.engine[name] for name in known if name in job.engine}
    )
    device = config.resolved_device()
    dtype = config.resolved_dtype(device, None)
    first, second = (parse_kv(kv, dtype) for kv in job.caches)
    if first == second:
        raise ValueError(f"--compare is {job.caches[1]!r}, the same as --kv; must be another cache")
    if device.type == "cuda" and "kv_memory" not in job.engine:
        raise ValueError(
            "--kv-memory is not there; must be with --compare: the first would take all"
        )


def _tell(kv: str, llm: LLM) -> None:
    built = llm.engine.built
    log.info(
        "%s on %s: KV cache %s, up to %d tokens, %d stored and %d dense pages",
        built.source.name,
        built.device,
        kv,
        built.max_model_len,
        built.size.stored_pages,
        built.size.dense_pages,
    )


def _warm_up(llm: LLM) -> None:
    """The first request should not pay for what only first calls cost."""
    length = min(64, llm.engine.built.max_model_len - WARM_UP.max_tokens - 1)  # type: ignore[operator]
    llm.generate([[0] * max(1, length)], WARM_UP)

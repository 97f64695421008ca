"""`gossamer serve`: a model behind OpenAI's API, with a page to look at it."""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gossamer.cli import options as o

if TYPE_CHECKING:
    from gossamer.engine import LLM

log = logging.getLogger("gossamer.server")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WARM_UP_TOKENS = 64


def serve(
    model: o.Model,
    kv: o.Cache = "dense",
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="SPEC",
            help="Second KV cache, for requests that ask for it by `kv` and to compare on the page",
            callback=o.specs_of,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one")
    ] = 8000,
    name: Annotated[
        str | None,
        typer.Option("--served-model-name", help="Model name in the API; default: the model's own"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="GOSSAMER_API_KEY", show_envvar=True, help="API key that clients must send"
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="Allowed CORS origin; repeatable"),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Allowed Host header on loopback; repeatable"),
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Maximum number of waiting sequences")] = 256,
    max_num_seqs: Annotated[int, typer.Option(help="Maximum number of running sequences")] = 256,
    max_output_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens per output")
    ] = None,
    max_body: Annotated[
        str, typer.Option(metavar="BYTES", help="Maximum size of a request body")
    ] = "1MiB",
    timeout: Annotated[float, typer.Option(help="Request timeout in seconds")] = 600.0,
    drain: Annotated[
        float, typer.Option(help="Seconds for running requests to finish at shutdown")
    ] = 30.0,
    profiles: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Enable the profiler; write traces to this directory"),
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log prompts")] = False,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    tensor_parallel_size: o.TensorParallel = 1,
    random_weights: o.RandomWeights = False,
    no_prefix_caching: Annotated[
        bool, typer.Option("--no-prefix-caching", help="Disable prefix caching")
    ] = False,
) -> None:
    """Serve a model with an OpenAI-compatible API, Prometheus metrics and a web page."""
    with o.one_line_errors():
        _serve(
            model,
            [kv] if compare is None else [kv, compare],
            host,
            port,
            settings={
                "model": name or served_name(model),
                "api_key": api_key,
                "origins": tuple(cors or ()),
                "hosts": _allowed_hosts(host, allowed_host or []),
                "profiles": profiles,
                "log_prompts": log_prompts,
            },
            limits={
                "queue": max_queue,
                "body": max_body,
                "output_tokens": max_output_tokens,
                "timeout": timeout,
                "drain": drain,
            },
            engine=o.given(
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                kv_memory=kv_memory,
                calibration=calibration,
                tensor_parallel_size=tensor_parallel_size,
                random_weights=random_weights,
                max_num_seqs=max_num_seqs,
                prefix_caching=not no_prefix_caching,
            ),
        )


def _serve(
    model: str,
    caches: list[str],
    host: str,
    port: int,
    *,
    settings: dict[str, Any],
    limits: dict[str, Any],
    engine: dict[str, Any],
) -> None:
    """Serve until told to stop. Raises ValueError, OSError, ImportError for what cannot be."""
    try:
        from gossamer.server.app import create_app
        from gossamer.server.settings import Limits, Settings
        from gossamer.server.uvicorn_server import bind, serve
    except ImportError as error:
        raise ImportError(f"the server needs {error.name}: pip install 'gossamer[serve]'") from None
    from gossamer.engine.config import parse_bytes
    from gossamer.workloads.loading import loaded, warm_up

    limits["body"] = parse_bytes("--max-body", limits["body"])
    checked = Settings(**settings, limits=Limits(**limits))
    if len(caches) > 1:
        _check_second_cache(model, caches, engine)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with bind(host, port) as listening, ExitStack() as stack:
        engines = {kv: stack.enter_context(loaded(model, kv=kv, **engine)) for kv in caches}
        for kv, llm in engines.items():
            _log_engine(kv, llm)
            warm_up(llm, [0] * WARM_UP_TOKENS)
        serve(create_app(engines, checked), listening)


def served_name(model: str) -> str:
    """As requests call the model: the built-in name, or that of the folder or file."""
    from gossamer.models import EMBEDDED

    return model if model in EMBEDDED else Path(model).resolve().name


def _allowed_hosts(host: str, more: list[str]) -> tuple[str, ...]:
    """Names by which requests may call a server on loopback; () for any, elsewhere."""
    return (*LOOPBACK, *map(str.lower, more)) if host in LOOPBACK else ()


def _check_second_cache(model: str, caches: list[str], engine: dict[str, Any]) -> None:
    """Before weights are loaded. Raises ValueError."""
    from gossamer.engine import EngineConfig
    from gossamer.kv import KVConfig

    config = EngineConfig(model=model, dtype=engine["dtype"], device=engine["device"])
    device = config.resolved_device()
    dtype = config.resolved_dtype(device, None)
    first, second = (KVConfig.of(kv, dtype) for kv in caches)
    if first == second:
        raise ValueError(f"--compare is {caches[1]!r}, the same as --kv; must be another cache")
    if device.type == "cuda" and "kv_memory" not in engine:
        raise ValueError("--compare needs --kv-memory: the first cache would take all memory")


def _log_engine(kv: str, llm: "LLM") -> None:
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

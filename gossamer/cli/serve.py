"""`gossamer serve`: a model behind OpenAI's API, with a page to look at it."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from gossamer.cli import options as o
from gossamer.cli.config_file import read_config

if TYPE_CHECKING:
    from gossamer.engine import EngineConfig
    from gossamer.server.settings import Settings

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_API_WORKERS = 4  # by default


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
    name: o.ServedName = None,
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
    api_workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="API processes: HTTP, JSON and text; default: 1 on a CPU, up to 4 with a GPU",
        ),
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Maximum number of waiting sequences")] = 256,
    max_num_seqs: o.MaxNumSeqs = 256,
    max_output_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens per output")
    ] = None,
    max_body: o.MaxBody = "1MiB",
    timeout: Annotated[float, typer.Option(help="Request timeout in seconds")] = 600.0,
    drain: Annotated[
        float, typer.Option(help="Seconds for running requests to finish at shutdown")
    ] = 30.0,
    profiles: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Enable the profiler; write traces to this directory"),
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log prompts")] = False,
    api_keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="API keys with names and limits per minute, in TOML"),
    ] = None,
    log_format: Annotated[str, typer.Option(help="Log format: text or json")] = "text",
    lora: o.Loras = None,
    max_loras: o.MaxLoras = None,
    max_lora_rank: o.MaxLoraRank = None,
    lora_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder from which LoRA adapters can be loaded while it runs"
        ),
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Form of tool calls: hermes, llama3, mistral or smollm2; default: the template's",
        ),
    ] = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    calibration_text: o.CalibrationText = None,
    tensor_parallel_size: o.TensorParallel = 1,
    launcher: o.Launcher = "auto",
    weights: o.Weights = "auto",
    random_weights: o.RandomWeights = False,
    eager: o.Eager = False,
    no_prefix_caching: o.NoPrefixCaching = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Serve replicas of the engine with Ray Serve")
    ] = False,
    replicas: Annotated[
        int | None, typer.Option(help="With --ray: replicas of the engine; default: 1")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(help="With --ray: autoscale from --replicas to as many")
    ] = None,
    cpus_per_rank: Annotated[
        float | None,
        typer.Option(metavar="N", help="With --ray: CPU cores of each rank; default: 1"),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="With --ray: a running cluster, or auto for this machine's"
        ),
    ] = None,
    kv_transfer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder through which servers share pages of prompts"),
    ] = None,
    kv_role: Annotated[
        str,
        typer.Option(
            help="With --kv-transfer: prefill (publishes pages), decode (looks them up) or both"
        ),
    ] = "both",
    kv_transfer_size: Annotated[
        str, typer.Option(metavar="BYTES", help="Maximum size of the folder of --kv-transfer")
    ] = "4GiB",
    config: Annotated[  # read by its callback, before the others get their defaults
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Options in TOML, by their names; those of the command line win",
            is_eager=True,
            callback=read_config,
        ),
    ] = None,
) -> None:
    """Serve a model with an OpenAI-compatible API, Prometheus metrics and a web page."""
    with o.one_line_errors():
        _serve(
            model,
            [kv] if compare is None else [kv, compare],
            host,
            port,
            api_workers,
            settings={
                "model": name or served_name(model),
                "api_key": api_key,
                "origins": tuple(cors or ()),
                "hosts": _allowed_hosts(host, allowed_host or []),
                "profiles": profiles,
                "log_prompts": log_prompts,
                "api_keys": api_keys and api_keys.absolute(),
                "log_format": log_format,
                "lora_dir": lora_dir,
                "tool_parser": tool_parser,
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
                calibration_text=calibration_text,
                tensor_parallel_size=tensor_parallel_size,
                launcher=launcher,
                weights=weights,
                random_weights=random_weights,
                enforce_eager=eager,
                max_num_seqs=max_num_seqs,
                prefix_caching=not no_prefix_caching,
                kv_transfer=kv_transfer,
                kv_role=kv_role,
                kv_transfer_size=kv_transfer_size,
                lora=o.adapters(lora),
                max_loras=max_loras,
                max_lora_rank=max_lora_rank,
            ),
            cluster=o.given(
                replicas=replicas,
                max_replicas=max_replicas,
                cpus=cpus_per_rank,
                address=ray_address,
            ),
            ray=ray,
        )


def _serve(
    model: str,
    caches: list[str],
    host: str,
    port: int,
    api_workers: int | None,
    *,
    settings: dict[str, Any],
    limits: dict[str, Any],
    engine: dict[str, Any],
    cluster: dict[str, Any],
    ray: bool,
) -> None:
    """Serve until told to stop. Raises ValueError, OSError, ImportError for what cannot be."""
    try:
        from gossamer.server.engine_process import EngineStart
        from gossamer.server.keys import Keys
        from gossamer.server.settings import Limits, Settings
        from gossamer.server.sockets import bind
        from gossamer.server.supervisor import Supervisor
    except ImportError as error:
        raise ImportError(f"the server needs {error.name}: pip install 'gossamer[serve]'") from None
    from gossamer.engine import EngineConfig
    from gossamer.engine.config import parse_bytes

    limits["body"] = parse_bytes("--max-body", limits["body"])
    checked = Settings(**settings, limits=Limits(**limits))
    Keys(checked.api_key, checked.api_keys)  # says now what is wrong with the file
    config = EngineConfig(model=model, **engine)
    if checked.model in config.lora:
        raise ValueError(f"--lora has {checked.model!r}, the model's own name; must be another")
    if checked.lora_dir is not None and not config.max_loras:
        raise ValueError("--lora-dir needs --max-loras, the number of adapters at a time")
    if config.tensor_parallel_size > 1 and config.resolved_launcher == "torchrun":
        raise ValueError("--launcher is torchrun; must be spawn or ray for a server")
    if len(caches) > 1:
        _check_second_cache(config, caches)
    if cluster and not ray:
        raise ValueError("--replicas, --max-replicas, --cpus-per-rank and --ray-address need --ray")
    if ray:
        _serve_on_ray(model, caches, host, port, api_workers or 1, checked, engine, cluster)
        return
    workers = _api_workers(config) if api_workers is None else api_workers
    queue, profiles = checked.limits.queue, checked.profiles
    start = EngineStart(model, tuple(caches), engine, queue, profiles, checked.log_format)
    with ExitStack() as stack:
        sockets = [stack.enter_context(found) for found in bind(host, port, workers)]
        code = Supervisor(start, checked, sockets).run()
    if code:
        raise typer.Exit(code)


def _serve_on_ray(
    model: str,
    caches: list[str],
    host: str,
    port: int,
    api_replicas: int,
    settings: "Settings",
    engine: dict[str, Any],
    cluster: dict[str, Any],
) -> None:
    try:
        from gossamer.cluster.run import serve_on_ray
    except ImportError as error:
        raise ImportError(f"--ray needs {error.name}: pip install 'gossamer[ray]'") from None
    from gossamer.cluster.config import ClusterConfig

    address = cluster.pop("address", None)
    config = ClusterConfig(
        model=model,
        caches=tuple(caches),
        engine=engine,
        settings=settings,
        api_replicas=api_replicas,
        **cluster,
    )
    serve_on_ray(config, host, port, address)


def _api_workers(config: "EngineConfig") -> int:
    """One where the CPU computes the model; a GPU outruns the JSON of one process."""
    if config.device_type == "cpu":
        return 1
    return max(1, min(MOST_API_WORKERS, (os.cpu_count() or 1) // 4))


def served_name(model: str) -> str:
    """As requests call the model: the built-in name, or that of the folder or file."""
    from gossamer.models import EMBEDDED

    return model if model in EMBEDDED else Path(model).resolve().name


def _allowed_hosts(host: str, more: list[str]) -> tuple[str, ...]:
    """Names by which requests may call a server on loopback; () for any, elsewhere."""
    return (*LOOPBACK, *map(str.lower, more)) if host in LOOPBACK else ()


def _check_second_cache(config: "EngineConfig", caches: list[str]) -> None:
    """Before weights are loaded. Raises ValueError."""
    from gossamer.kv import KVConfig
    from gossamer.kv.auto import Preset

    dtype = config.resolved_dtype(torch.device(config.device_type), None)
    first, second = (Preset.parse(kv) or KVConfig.of(kv, dtype) for kv in caches)
    if first == second:
        raise ValueError(f"--compare is {caches[1]!r}, the same as --kv; must be another cache")
    if config.device_type == "cuda" and config.kv_memory is None:
        raise ValueError("--compare needs --kv-memory: the first cache would take all memory")

"""`gossamer batch`: a file of requests in, a file of results out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from gossamer.cli import options as o
from gossamer.cli.serve import served_name

if TYPE_CHECKING:
    from gossamer.batch.run import Compute
    from gossamer.engine import EngineConfig


def batch(
    model: o.Model,
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Requests: a file in OpenAI's batch format")
    ],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUTPUT", help="Results; what it has already is not computed again"),
    ],
    kv: o.Cache = "dense",
    name: o.ServedName = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of requests in memory, for each engine; "
            "default: twice --max-num-seqs"
        ),
    ] = None,
    max_body: o.MaxBody = "1MiB",
    ray: Annotated[bool, typer.Option("--ray", help="Compute with Ray Data")] = False,
    replicas: Annotated[
        int | None, typer.Option(help="Number of engines with --ray; default: 1")
    ] = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    max_num_seqs: o.MaxNumSeqs = 256,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    calibration_text: o.CalibrationText = None,
    tensor_parallel_size: o.TensorParallel = 1,
    launcher: o.Launcher = "auto",
    weights: o.Weights = "auto",
    random_weights: o.RandomWeights = False,
    eager: o.Eager = False,
    no_prefix_caching: o.NoPrefixCaching = False,
    lora: o.Loras = None,
) -> None:
    """Answer the requests of a file; the same command goes on where a killed one ended."""
    with o.one_line_errors():
        if replicas is not None and not ray:
            raise ValueError("--replicas is for --ray")
        for option, value in (("replicas", replicas), ("max-in-flight", max_in_flight)):
            if value is not None:
                o.at_least(option, value, 1)
        _batch(
            source,
            target,
            (replicas or 1) if ray else None,
            setup={
                "model": model,
                "kv": kv,
                "name": name or served_name(model),
                "in_flight": max_in_flight or 2 * max_num_seqs,
            },
            max_body=max_body,
            engine=o.given(
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                max_num_seqs=max_num_seqs,
                kv_memory=kv_memory,
                calibration=calibration,
                calibration_text=calibration_text,
                tensor_parallel_size=tensor_parallel_size,
                launcher=launcher,
                weights=weights,
                random_weights=random_weights,
                enforce_eager=eager,
                prefix_caching=not no_prefix_caching,
                lora=o.adapters(lora),
            ),
        )


def _batch(
    source: Path,
    target: Path,
    replicas: int | None,
    *,
    setup: dict[str, Any],
    max_body: str,
    engine: dict[str, Any],
) -> None:
    """replicas: None without Ray. Exit code 1 if the engine fails before the last line is done."""
    try:
        from gossamer.batch import EngineFailedError, Setup, local, run
    except ImportError as error:
        raise ImportError(f"this needs {error.name}: pip install 'gossamer[serve]'") from None
    from gossamer.engine import EngineConfig
    from gossamer.engine.config import parse_bytes
    from gossamer.kv import KVConfig

    _check_launcher(EngineConfig(model=setup["model"], **engine), on_ray=replicas is not None)
    checked = Setup(**setup, max_body=parse_bytes("--max-body", max_body), options=engine)
    KVConfig.of(checked.kv, torch.float32)
    compute = local.compute if replicas is None else _computing_on_ray(replicas)
    try:
        summary = run(checked, source, target, compute)
    except EngineFailedError as error:
        raise o.failed(error, code=1) from None
    typer.echo(f"{summary}; written to {target}")


def _check_launcher(config: "EngineConfig", on_ray: bool) -> None:
    """Raises ValueError. torchrun's processes would all write the output, and an engine in an actor
    has its GPUs already."""
    valid = ("spawn",) if on_ray else ("spawn", "ray")
    launcher = config.resolved_launcher
    if config.tensor_parallel_size > 1 and launcher not in valid:
        kind = "a batch with --ray" if on_ray else "a batch"
        raise ValueError(f"--launcher is {launcher}; must be {' or '.join(valid)} for {kind}")


def _computing_on_ray(replicas: int) -> "Compute":
    try:
        from gossamer.batch.on_ray import computing
    except ImportError as error:
        raise ImportError(f"--ray needs {error.name}: pip install 'gossamer[ray]'") from None
    return computing(replicas)

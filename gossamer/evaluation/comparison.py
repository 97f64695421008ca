"""KV caches of a model and peers on the same tasks: what `gossamer eval` runs."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from gossamer import plotting
from gossamer.engine import EngineConfig
from gossamer.engine.auto import settle
from gossamer.engine.build import sized_cache
from gossamer.evaluation.experiment import Experiment, Open, Result, evaluate
from gossamer.evaluation.peers import Build, Peer, parse_peer
from gossamer.evaluation.report import BASELINE
from gossamer.evaluation.store import Store
from gossamer.evaluation.subject import EngineSubject, spec_name
from gossamer.evaluation.suite import Options, check_tasks, make_tasks
from gossamer.integrations.transformers import load_model
from gossamer.kv import KVConfig
from gossamer.kv.auto import Preset
from gossamer.kv.speed import DecodeSpeed, decode_speed
from gossamer.models import EMBEDDED, Source, open_model
from gossamer.models.embedded import embedded_path
from gossamer.workloads.loading import free_memory


@dataclass(frozen=True)
class Comparison:
    """Tasks to run with each cache and each peer (see gossamer.evaluation.peers).

    engine: options of the engine. baseline: a dense cache first, whether it is named or not.
    results: a file to keep scores in. plot: a folder for figures, checked before anything runs.
    """

    model: str
    caches: list[str]
    tasks: list[str]
    options: Options
    engine: dict[str, Any]
    peers: list[str] = field(default_factory=list)
    baseline: bool = True
    results: Path | None = None
    plot: Path | None = None


def compare(wanted: Comparison) -> list[Result]:
    """Run everything. Raises ValueError, OSError or ImportError for bad input, before it runs."""
    for spec in wanted.caches:
        Preset.parse(spec) or KVConfig.parse(spec)
    source = open_model(wanted.model)
    config = EngineConfig(model=source, **wanted.engine)
    longest = config.max_model_len or source.config.max_positions
    tasks = make_tasks(wanted.tasks, wanted.options, longest)
    check_tasks(tasks, source.tokenizer(), longest)
    wanted = settled(wanted)  # may take minutes: after what can be wrong with the tasks
    config = EngineConfig(model=source, **wanted.engine)
    specs = _specs(wanted, source, config)
    if wanted.plot is not None:
        plotting.check()
    experiment = _experiment(wanted, source, config, tasks, specs)
    subjects: dict[str, Open] = {
        name: partial(open_subject, source, spec, wanted.engine) for name, spec in specs.items()
    }
    subjects |= _peers(wanted, config, source)
    return evaluate(experiment, subjects, Store(wanted.results), progress=True)


def settled(wanted: Comparison) -> Comparison:
    """With caches in the place of presets, and a calibration where one of them needs it.

    Raises what `gossamer.engine.auto.settle` raises.
    """
    caches, engine = [], dict(wanted.engine)
    for spec in wanted.caches:
        config, chosen = settle(EngineConfig(model=wanted.model, kv=spec, **wanted.engine))
        caches.append(spec if chosen is None else str(chosen.config))
        if config.calibration is not None:
            engine = {**engine, "calibration": config.calibration}
            engine.pop("calibration_text", None)
    return replace(wanted, caches=caches, engine=engine)


def speeds_of(wanted: Comparison) -> dict[str, DecodeSpeed]:
    """How each cache decodes on the device of the comparison, by the names of rows."""
    wanted = settled(wanted)
    source = open_model(wanted.model)
    config = EngineConfig(model=source, **wanted.engine)
    device, shape = config.resolved_device(), source.config.kv_shape
    dtype = config.resolved_dtype(device, source.config.dtype)
    return {
        name: decode_speed(
            sized_cache(replace(config, kv=spec), source, dtype), shape, dtype, device
        )
        for name, spec in _specs(wanted, source, config).items()
    }


def _specs(wanted: Comparison, source: Source, config: EngineConfig) -> dict[str, str]:
    """Names of rows and their specs. Raises ValueError for one that the model cannot have."""
    dtype = config.resolved_dtype(config.resolved_device(), source.config.dtype)
    caches = [BASELINE, *wanted.caches] if wanted.baseline or not wanted.caches else wanted.caches
    specs = {spec_name(spec): spec for spec in caches}  # a cache that is named twice runs once
    for spec in specs.values():
        sized = sized_cache(replace(config, kv=spec), source, dtype)
        sized.block_bytes(source.config.kv_shape)
    return specs


def _calibrated(spec: str) -> bool:
    return KVConfig.of(spec, torch.float32).calibrated


def _experiment(
    wanted: Comparison,
    source: Source,
    config: EngineConfig,
    tasks: list[Any],
    specs: dict[str, str],
) -> Experiment:
    device = config.resolved_device()
    dtype = str(config.resolved_dtype(device, source.config.dtype)).removeprefix("torch.")
    path = config.calibration or source.calibration
    made = {} if path is None else {"calibration": file_digest(Path(path))}
    setup = {"dtype": dtype, "device": device.type}
    if config.weights != "auto":  # results of before there was a choice go on
        setup["weights"] = config.weights
    return Experiment(
        model=str(Path(wanted.model).resolve()) if Path(wanted.model).exists() else wanted.model,
        tasks=tasks,
        seed=wanted.options.seed,
        setup=setup,
        setups={name: made for name, spec in specs.items() if _calibrated(spec)},
        device=str(device),
    )


def file_digest(path: Path) -> str:
    """That names a calibration in results."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def open_subject(source: Source, spec: str, engine: dict[str, Any]) -> EngineSubject:
    """An engine with one cache, after what is left of an earlier one has left memory."""
    free_memory()
    return EngineSubject(source, spec, **engine)


def _peers(wanted: Comparison, config: EngineConfig, source: Source) -> dict[str, Open]:
    """How other methods are opened, by their specs. Raises ValueError for one that is wrong."""
    builders = {spec: parse_peer(spec) for spec in wanted.peers}
    device = config.resolved_device()
    dtype = config.resolved_dtype(device, source.config.dtype)
    path = embedded_path(wanted.model) if wanted.model in EMBEDDED else Path(wanted.model)
    model = cache(partial(load_model, path, dtype=dtype, device=str(device)))  # once for all
    return {spec: partial(_open_peer, build, model) for spec, build in builders.items()}


def _open_peer(build: Build, model: Callable[[], tuple[Any, Any]]) -> Peer:
    return build(*model())

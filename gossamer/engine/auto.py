"""What a config leaves to us: the calibration of a model, and the cache that a preset means."""

import hashlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from gossamer.engine.config import EngineConfig
from gossamer.kv import Calibration, KVConfig
from gossamer.kv.auto import Chosen, Preset, choose
from gossamer.kv.calibration_files import OWN_TEXT, kept_calibration
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.gradients import SHORTEST_WINDOW
from gossamer.kv.speed import decode_speed
from gossamer.models import Source, source_fingerprint
from gossamer.models.random import RandomSource

log = logging.getLogger("gossamer.kv")

# Gradients of whole windows are large tensors: glibc would give each back to the system and ask for
# it again (a third of the time on a CPU).
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
PROCESS = "gossamer.integrations.self_calibration"  # not imported: it stands above the engine


def settle(config: EngineConfig) -> tuple[EngineConfig, Chosen | None]:
    """The config with its calibration and, in the place of a preset, a cache.

    At the first use of a model this takes minutes. Raises ValueError for a preset that does not
    exist or that nothing fits, and for a model that cannot be calibrated.
    """
    preset = Preset.parse(config.kv)
    if preset is None and not _calibrated(config):
        return config, None
    source = config.source()
    if config.tensor_parallel_size == 1:
        config = replace(config, model=source)
    if preset is not None and source.config.sees < SHORTEST_WINDOW:
        log.warning(
            "kv %s: dense, as %s sees %d tokens, all of them in a dense window",
            *(preset.text, source.name, source.config.sees),
        )
        return replace(config, kv="dense"), None
    fingerprint = None
    if not isinstance(source, RandomSource):
        fingerprint = source_fingerprint(source)
        path = config.calibration or source.calibration
        if path is None or config.calibration_text is not None:
            path = _made(config, source, fingerprint)
        config = replace(config, calibration=path, calibration_text=None)
    if preset is None:
        return config, None
    chosen = _choose(preset, config, source, fingerprint)
    return replace(config, kv=chosen.config), chosen


def _calibrated(config: EngineConfig) -> bool:
    try:
        return KVConfig.of(config.kv, torch.float32).calibrated
    except ValueError:  # told by whoever builds it
        return False


def _choose(
    preset: Preset, config: EngineConfig, source: Source, fingerprint: Fingerprint | None
) -> Chosen:
    """fingerprint: None for random weights, whose channels are all alike."""
    shape, device = source.config.kv_shape, config.resolved_device()
    dtype = config.resolved_dtype(device, source.config.dtype)
    if fingerprint is None or config.calibration is None:
        calibration = Calibration.blank(shape, source.name)
    else:
        calibration = Calibration.load(config.calibration, fingerprint)
    speed = partial(decode_speed, shape=shape, dtype=dtype, device=device)
    return choose(preset, calibration, shape, dtype, speed)


def _made(config: EngineConfig, source: Source, fingerprint: Fingerprint) -> Path:
    """The kept calibration of this model, or a new one."""
    text = OWN_TEXT
    if config.calibration_text is not None:
        text = hashlib.sha256(Path(config.calibration_text).read_bytes()).hexdigest()
    make = partial(_make, config, source)
    return kept_calibration(fingerprint, make, text)


def _make(config: EngineConfig, source: Source, output: Path) -> None:
    """In a process of its own, whose memory is gone afterwards. Raises ValueError."""
    device = config.resolved_device()
    job = {
        "model": _path_of(source, config.model),
        "output": str(output),
        "device": str(device),
        "dtype": str(config.resolved_dtype(device, source.config.dtype)).removeprefix("torch."),
        "text": "" if config.calibration_text is None else os.fspath(config.calibration_text),
    }
    command = [sys.executable, "-m", PROCESS]
    environment = KEEP_MEMORY | os.environ
    done = subprocess.run(
        command,
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        reason = done.stdout.strip() or f"its process ended with {done.returncode}"
        raise ValueError(f"{source.name} cannot be calibrated: {reason}")


def _path_of(source: Source, model: Any) -> str:
    for found in (getattr(source, "folder", None), getattr(source, "path", None), model):
        if isinstance(found, str | PathLike):
            return os.fspath(found)
    raise ValueError(f"{source.name} is not a file; name a calibration by calibration=")

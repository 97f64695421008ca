"""`use_gossamer(model, kv="auto")`: the cache that a preset means for a transformers model."""

import logging
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from gossamer.integrations.transformers.support import kv_shape
from gossamer.kv import Calibration, KVConfig
from gossamer.kv.auto import Preset, choose
from gossamer.kv.calibration_files import kept_calibration
from gossamer.kv.folding import fingerprint
from gossamer.kv.speed import decode_speed

log = logging.getLogger("gossamer.kv")
CalibrationLike = Calibration | str | PathLike[str] | None


def settled(
    model: Any, kv: str | KVConfig, calibration: CalibrationLike
) -> tuple[str | KVConfig, CalibrationLike]:
    """The cache and its calibration; what is no preset stays as it is.

    At the first use of a model, it is calibrated on text that it writes, which takes minutes; the
    result is kept. Raises ValueError for a preset that nothing fits, and for a model that cannot be
    calibrated.
    """
    preset = Preset.parse(kv)
    if preset is None:
        return kv, calibration
    if not isinstance(calibration, Calibration):
        known = fingerprint(model)
        path = calibration or kept_calibration(known, partial(_make, model))
        calibration = Calibration.load(path, known)
    shape = kv_shape(model)
    speed = partial(decode_speed, shape=shape, dtype=model.dtype, device=model.device)
    chosen = choose(preset, calibration, shape, model.dtype, speed)
    log.info("%s", chosen)
    return chosen.config, calibration


def _make(model: Any, output: Path) -> None:
    from gossamer.integrations.self_calibration import (  # noqa: PLC0415 - it needs this package
        bars,
        sampled_by,
        self_calibrate,
    )

    with bars(f"calibrating {type(model).__name__}") as bar:
        self_calibrate(model, sampled_by(model, bar), bar).save(output)

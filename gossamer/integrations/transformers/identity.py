"""Whether a model is the one that a calibration or a saved cache was made with."""

from typing import Any

from torch import Tensor

from gossamer.kv import Calibration
from gossamer.kv.fingerprint import TOLERANCE, Sketch, sketch


def expected_sketches(calibration: Calibration | None) -> tuple[Sketch, ...] | None:
    """Per layer, what the model's projections must look like; None for any model."""
    return None if calibration is None else calibration.manifest.fingerprint.k_sketches


def sketch_of(module: Any) -> Sketch:
    """Of an attention module's K projection, or of its first matrix where it has no such thing."""
    weight = getattr(getattr(module, "k_proj", None), "weight", None)
    if not isinstance(weight, Tensor):
        weight = next((p for p in module.parameters() if p.dim() == 2), None)
    if weight is None or not weight.is_floating_point():
        raise ValueError(f"{type(module).__name__} has no matrix of floats to tell models apart by")
    return sketch(weight)


def check_same(expected: Sketch, module: Any, layer: int) -> None:
    """ValueError when the module is not the one that was sketched."""
    if max(abs(a - b) for a, b in zip(expected, sketch_of(module), strict=True)) > TOLERANCE:
        raise ValueError(
            f"the calibration or saved cache belongs to another model: layer {layer} has other K "
            "projections; make it again with this model"
        )

"""The calibration that a cache needs, read and checked."""

from os import PathLike

from gossamer.kv import Calibration, KVConfig, KVShape


def needed_calibration(
    calibration: Calibration | str | PathLike[str] | None, spec: KVConfig, shape: KVShape
) -> Calibration | None:
    """The calibration, read from its file; None where the spec needs none.

    Raises ValueError where it is missing, made for another shape, or not for this cache.
    """
    if not spec.calibrated:
        return None
    if calibration is None:
        raise ValueError(
            f"kv is {spec}, which needs a calibration; make one by `gossamer calibrate`, and pass "
            "calibration=FILE"
        )
    found = calibration if isinstance(calibration, Calibration) else Calibration.load(calibration)
    if found.manifest.shape != shape:
        raise ValueError(
            f"the calibration of {found.manifest.model} is for {found.manifest.shape}; "
            f"the model has {shape}"
        )
    resolved = spec.resolve(found)
    resolved.block_bytes(shape)
    for name, side in (("k", resolved.k), ("v", resolved.v)):
        found.basis(name, side)  # refuses codes that it was not made for
    return found

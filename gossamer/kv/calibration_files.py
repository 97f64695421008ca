"""Calibrations that were made at the first use of a model, in the user's cache folder.

One file for each model, text and format. It appears whole or not at all; two processes that want
the same one make it once.
"""

import hashlib
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from gossamer.attention.coefficient_files import cache_folder
from gossamer.kv.calibration import Calibration
from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.manifest import FORMAT

log = logging.getLogger("gossamer.kv")

OWN_TEXT = "own"
Make = Callable[[Path], None]  # writes a calibration to this path


def kept_file(fingerprint: Fingerprint, text: str = OWN_TEXT) -> Path:
    """Where the calibration of a model is kept. text: a digest, or OWN_TEXT."""
    # Sketches are rounded: weights that were loaded in another way may differ in the last digit.
    known = asdict(fingerprint) | {
        side: [[round(x, 3) for x in sketch] for sketch in getattr(fingerprint, side)]
        for side in ("k_sketches", "v_sketches")
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:24]
    return cache_folder() / "calibrations" / f"{digest}_{text[:12]}_{FORMAT}.safetensors"


def kept_calibration(fingerprint: Fingerprint, make: Make, text: str = OWN_TEXT) -> Path:
    """The file of a model's calibration, made by `make` where there is none that can be read.

    Where the folder cannot be written, the calibration is made for this process alone. Raises
    what `make` raises.
    """
    path = kept_file(fingerprint, text)
    if _readable(path, fingerprint):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        log.warning("a calibration cannot be kept in %s: %s", path.parent, error.strerror or error)
        own = Path(tempfile.mkdtemp(prefix="gossamer-calibration-")) / path.name
        make(own)
        return own
    with FileLock(path.with_suffix(".lock")):  # another process may be making it
        if not _readable(path, fingerprint):
            make(path)
    return path


def _readable(path: Path, fingerprint: Fingerprint) -> bool:
    if not path.is_file():
        return False
    try:  # files appear whole, so what they say of themselves is enough
        if difference := Calibration.manifest_of(path).fingerprint.difference(fingerprint):
            raise ValueError(difference)
    except (ValueError, OSError) as error:
        log.warning("%s is made again: %s", path, error)
        return False
    return True

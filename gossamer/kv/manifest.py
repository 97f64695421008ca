"""What a calibration file says about itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.ladder import Loss
from gossamer.kv.shape import KVShape

FORMAT = 4  # 2: with gradients; 3: with what coded rows need; 4: with losses
READABLE = (3, FORMAT)
AGAIN = "make it again by `gossamer calibrate MODEL --text FILE -o FILE`"


@dataclass(frozen=True)
class Manifest:
    """Where a calibration comes from. model: a name without its path, for people.

    losses: what caches of the LADDER cost on the text; none in files of format 3.
    """

    model: str
    fingerprint: Fingerprint
    text_sha256: str
    tokens: int
    gossamer: str
    torch: str
    transformers: str
    losses: dict[str, Loss] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def shape(self) -> KVShape:
        return self.fingerprint.shape

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The manifest that `asdict` made this of; ValueError says what is wrong with it."""
        if not isinstance(data, Mapping):
            raise ValueError(f"manifest is a {type(data).__name__}; must be an object")
        if data.get("format") not in READABLE:
            valid = " and ".join(map(str, READABLE))
            raise ValueError(
                f"format is {data.get('format')!r}; this version reads {valid}: {AGAIN}"
            )
        if data["format"] != FORMAT:
            data = {"losses": {}, **data}
        names = {field.name for field in fields(cls)}
        if set(data) != names:
            raise ValueError(
                f"manifest has unknown keys {sorted(set(data) - names)} "
                f"and lacks {sorted(names - set(data))}"
            )
        for name in names - {"fingerprint", "losses"}:
            kind = int if name in ("tokens", "format") else str
            if type(data[name]) is not kind:
                raise ValueError(f"manifest: {name} is {data[name]!r}; must be {kind.__name__}")
        losses = _losses(data["losses"])
        fingerprint = Fingerprint.from_dict(data["fingerprint"])
        return cls(**{**data, "fingerprint": fingerprint, "losses": losses})


def _losses(data: Any) -> dict[str, Loss]:
    try:
        found = {str(spec): Loss(float(x["mean"]), float(x["half"])) for spec, x in data.items()}
        if not all(math.isfinite(x.mean) and math.isfinite(x.half) for x in found.values()):
            raise ValueError("not finite")
        return found
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"manifest: losses are damaged: {error}") from None

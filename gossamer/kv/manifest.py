"""What a calibration file says about itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from gossamer.kv.fingerprint import Fingerprint
from gossamer.kv.shape import KVShape

FORMAT = 3  # 2: with gradients; 3: with what coded rows need
AGAIN = "make it again by `gossamer calibrate MODEL --text FILE -o FILE`"


@dataclass(frozen=True)
class Manifest:
    """Where a calibration comes from. model: a name without its path, for people."""

    model: str
    fingerprint: Fingerprint
    text_sha256: str
    tokens: int
    gossamer: str
    torch: str
    transformers: str
    format: int = FORMAT

    @property
    def shape(self) -> KVShape:
        return self.fingerprint.shape

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The manifest that `asdict` made this of; ValueError says what is wrong with it."""
        if not isinstance(data, Mapping):
            raise ValueError(f"manifest is a {type(data).__name__}; must be an object")
        if data.get("format") != FORMAT:
            raise ValueError(
                f"format is {data.get('format')!r}; this version reads {FORMAT}: {AGAIN}"
            )
        names = {field.name for field in fields(cls)}
        if set(data) != names:
            raise ValueError(
                f"manifest has unknown keys {sorted(set(data) - names)} "
                f"and lacks {sorted(names - set(data))}"
            )
        for name in names - {"fingerprint"}:
            kind = int if name in ("tokens", "format") else str
            if type(data[name]) is not kind:
                raise ValueError(f"manifest: {name} is {data[name]!r}; must be {kind.__name__}")
        return cls(**{**data, "fingerprint": Fingerprint.from_dict(data["fingerprint"])})

"""Which job a result belongs to: the input, and all that results depend on."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gossamer.models import open_model, source_fingerprint
from gossamer.server.settings import Limits, Settings

ENVELOPE = 64 << 10  # bytes of a line next to its body
DIGITS = 12  # of a digest, in hex
# Options of the engine that change results by more than rounding, next to the model's weights.
DECISIVE = ("dtype", "max_model_len")
FILES = ("calibration", "calibration_text")
NEVER = 1e9  # seconds


@dataclass(frozen=True)
class Setup:
    """What answers. options: of EngineConfig. name: of the model in requests.

    max_body: bytes. in_flight: requests at a time, for each engine.
    """

    model: str
    kv: str
    options: dict[str, Any]
    name: str
    max_body: int
    in_flight: int

    def __post_init__(self) -> None:
        """Raises ValueError for what no server takes."""
        self.settings()

    @property
    def longest_line(self) -> int:
        return self.max_body + ENVELOPE

    def settings(self) -> Settings:
        """Of a server that has all requests in flight in its queue, and all the time for them."""
        queue = self.in_flight * Limits.sequences
        limits = Limits(queue=queue, body=self.max_body, timeout=NEVER)
        return Settings(model=self.name, limits=limits)

    def digest(self) -> str:
        """Raises ValueError or OSError for a model or a calibration that cannot be read."""
        options = self.options
        weights = (options.get("random_weights", False), options.get("seed", 0))
        source = open_model(self.model, *weights)
        decisive: dict[str, Any] = {name: options.get(name) for name in DECISIVE}
        for name in FILES:
            path = options.get(name)
            decisive[name] = path and hashlib.sha256(Path(path).read_bytes()).hexdigest()
        decisive |= {"model": asdict(source_fingerprint(source)), "kv": self.kv, "name": self.name}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Job:
    """input, setup: digests."""

    input: str
    setup: str

    @property
    def prefix(self) -> str:
        """Of the ids of its results; the number of the line follows."""
        return f"batch_req_{self.input[:DIGITS]}_{self.setup[:DIGITS]}_"

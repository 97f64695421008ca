"""Which job a result belongs to: the input, and all that results depend on."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gossamer.kv.auto import Preset
from gossamer.models import Source
from gossamer.models import adapter as adapter_files
from gossamer.models.layout import tensor_shapes
from gossamer.models.source import WHOLE, StoredTensor
from gossamer.server.settings import Limits, Settings
from gossamer.workloads.loading import opened

ENVELOPE = 64 << 10  # bytes of a line next to its body
DIGITS = 12  # of a digest, in hex
# Options of the engine that change results by more than rounding, next to the model's weights.
DECISIVE = ("dtype", "max_model_len")
FILES = ("calibration", "calibration_text")
NEVER = 1e9  # seconds
ROWS = 8  # of each matrix of the model that are read


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
        """Raises ValueError for what no server takes, and for a cache that time decides."""
        self.settings()
        if self.name in self.options.get("lora", {}):
            raise ValueError(f"--lora has {self.name!r}, the model's own name; must be another")
        if (preset := Preset.parse(self.kv)) is not None:
            raise ValueError(
                f"--kv is {preset.text}, whose cache depends on measured speed; name the cache, "
                "like sparse:k=32,v=32"
            )

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
        random, seed = options.get("random_weights", False), options.get("seed", 0)
        source = opened(self.model, random, seed)
        decisive: dict[str, Any] = {name: options.get(name) for name in DECISIVE}
        for name in FILES:
            path = options.get(name)
            decisive[name] = path and hashlib.sha256(Path(path).read_bytes()).hexdigest()
        decisive |= {
            "config": repr(source.config),
            "weights": f"random, {seed}" if random else _weights(source),
            "precision": options.get("weights", "auto"),
            "template": getattr(source.tokenizer(), "chat_template", None),
            "kv": self.kv,
            "name": self.name,
        }
        for adapter, folder in options.get("lora", {}).items():
            decisive[f"lora {adapter}"] = [
                hashlib.sha256(Path(folder, file).read_bytes()).hexdigest()
                for file in (adapter_files.CONFIG, adapter_files.WEIGHTS)
            ]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def _weights(source: Source) -> list[tuple[str, str]]:
    """A digest of each tensor, in an order that does not depend on files: see ROWS."""
    names = tensor_shapes(source.config)
    return sorted((name, _sample(tensor)) for name, tensor in source.tensors(names))


def _sample(tensor: StoredTensor) -> str:
    """Of vectors whole, and of rows from the first to the last of a matrix."""
    parts = [WHOLE]
    if len(tensor.shape) > 1:
        last = tensor.shape[0] - 1
        rows = sorted({last * i // (ROWS - 1) for i in range(ROWS)})
        parts = [(slice(row, row + 1),) for row in rows]
    digest = hashlib.sha256(str(list(tensor.shape)).encode())
    for part in parts:
        digest.update(tensor[part].contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Job:
    """input, setup: digests."""

    input: str
    setup: str

    @property
    def prefix(self) -> str:
        """Of the ids of its results; the number of the line follows."""
        return f"batch_req_{self.input[:DIGITS]}_{self.setup[:DIGITS]}_"

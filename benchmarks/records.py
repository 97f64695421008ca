"""What was measured, as files: where each result is, how it is read, and how it is made again."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gossamer.bench import Record, read_records

FOLDER = Path(__file__).parent
Line = dict[str, Any]

# Files of results and the module that writes them; others are of the suite of the same name.
WRITERS = {
    "masked_attention_shapes": "benchmarks.suites.masked_attention --points shapes",
    "masked_attention_families": "benchmarks.suites.masked_attention --points families",
    "engine_codes": "benchmarks.end_to_end.engine --part codes",
    "engine_decode": "benchmarks.end_to_end.engine",
    "engine_throughput": "benchmarks.end_to_end.engine",
    "engine_memory": "benchmarks.end_to_end.memory benchmarks/models/llama-3-8b --kv dense",
    "engine_prefill": "benchmarks.end_to_end.prefill",
    "engine_handoff": "benchmarks.end_to_end.handoff",
    "engine_weights": "benchmarks.end_to_end.weights",
    "weights-smollm2": "benchmarks.end_to_end.weights_quality",
    "transformers_cache": "benchmarks.end_to_end.transformers_cache",
    "fusion": "benchmarks.end_to_end.fusion",
    "loads": "benchmarks.end_to_end.loads benchmarks/models/llama-3-8b mixed decode long",
    "loads_vllm": (
        "benchmarks.end_to_end.loads benchmarks/models/llama-3-8b mixed decode long --engine vllm"
    ),
    "lora": "benchmarks.end_to_end.lora --results benchmarks/serving",
    "batch_kill": "benchmarks.end_to_end.batch_kill --results benchmarks/serving",
    "replicas": "benchmarks.end_to_end.replicas --results benchmarks/serving",
    "structured": "benchmarks.end_to_end.structured",
    "smollm2-135m": "benchmarks.end_to_end.quality",
    "auto-smollm2": (
        "gossamer.cli.main eval smollm2 --tasks perplexity,lookup "
        "--kv auto:25% --kv auto:20% --kv auto:16% --results FILE"
    ),
    "peers-smollm2": (
        "gossamer.cli.main eval smollm2 --tasks perplexity --peer turboquant:4 --peer turboquant:3 "
        "--peer fp8 --peer int8 --peer quest:0.25 --peer kivi:4 --results FILE"
    ),
    "positions-smollm2": "benchmarks.end_to_end.positions",
    "soak": "benchmarks.end_to_end.soak",
    "nvidia-h200": "benchmarks.end_to_end.transformers_cache",  # of comparisons/transformers
}


class MissingRecordsError(ValueError):
    """There is no such file of results, or it has nothing of what is asked for."""


def command_of(file: str) -> str:
    """What measures a file of results anew, by the file's stem."""
    return f"python -m {WRITERS.get(file, f'benchmarks.suites.{file}')}"


def devices(folder: Path = FOLDER) -> list[str]:
    """Folders of results, GPUs first."""
    results = folder / "results"
    found = [f.name for f in results.iterdir() if f.is_dir()] if results.is_dir() else []
    return sorted(found, key=lambda name: (not is_gpu(name), name))


def is_gpu(device: str) -> bool:
    """Whether a folder of results is of a GPU: CPUs are named with their threads."""
    return not device.endswith("-threads")


@dataclass(frozen=True)
class Benchmarks:
    """The files below one folder, read once. device: the folder of results that is looked at."""

    folder: Path = FOLDER
    device: str = ""
    _read: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Path = FOLDER, device: str = "") -> "Benchmarks":
        """Of a device, by default the first GPU. Raises ValueError where there are no results."""
        known = devices(folder)
        if not known:
            raise MissingRecordsError(f"{folder} has no results/<device> folders with records")
        if device and device not in known:
            raise ValueError(f"device is {device!r}; must be one of {', '.join(known)}")
        return cls(folder, device or known[0])

    def records(self, *files: str) -> list[Record]:
        """Of these files together, by their stems."""
        return [record for file in files for record in self._once(self.path(file), _of_one_device)]

    def known(self, *files: str) -> list[Record]:
        """The same of those files that are there."""
        return self.records(*(file for file in files if self.path(file).is_file()))

    def path(self, file: str) -> Path:
        return self.folder / "results" / self.device / f"{file}.jsonl"

    def where(self, file: str) -> Path | None:
        """The file of results, quality or serving with this stem, if there is one."""
        folders = (f"results/{self.device}", "quality", "serving")
        places = (self.folder / folder / f"{file}.jsonl" for folder in folders)
        return next((place for place in places if place.is_file()), None)

    def everything(self) -> list[Record]:
        """All records of the device."""
        found = sorted((self.folder / "results" / self.device).glob("*.jsonl"))
        return self.records(*(path.stem for path in found))

    def lines(self, path: str) -> list[Line]:
        """JSON lines of a file below the folder."""
        found: list[Line] = self._once(self.folder / path, read_lines)
        return found

    def table(self, path: str) -> list[dict[str, str]]:
        """Rows of a CSV of the project: facts of others, which no run measures."""
        found: list[dict[str, str]] = self._once(FOLDER / path, _read_table)
        return found

    @property
    def name(self) -> str:
        """Of the device, as its records say."""
        for path in sorted((self.folder / "results" / self.device).glob("*.jsonl")):
            if found := self.records(path.stem):
                return found[0].device
        return self.device

    def _once(self, path: Path, read: Callable[[Path], Any]) -> Any:
        if path not in self._read:
            if not path.is_file():
                raise MissingRecordsError(
                    f"{path} is missing; it is made by `{command_of(path.stem)}`"
                )
            self._read[path] = read(path)
        return self._read[path]


def _of_one_device(path: Path) -> list[Record]:
    records = read_records(path)
    names = sorted({record.device for record in records})
    if len(names) > 1:
        raise ValueError(f"{path} mixes devices: {', '.join(names)}; must be of one")
    if not records:
        raise MissingRecordsError(f"{path} is empty; it is made by `{command_of(path.stem)}`")
    return records


def read_lines(path: Path) -> list[Line]:
    """JSON objects, one on each line. Raises ValueError that names file and line."""
    found = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is not JSON: {error}") from None
        if not isinstance(line, dict):
            raise ValueError(f"{path}:{number} is not an object")
        found.append(line)
    return found


def holds_records(path: Path) -> bool:
    """Whether the lines of a file are records, as of ops and engines, and not of another kind."""
    with path.open() as file:
        return '"median_ms"' in file.readline()


def _read_table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def short_model(variant: str) -> tuple[str, str]:
    """`model, cache, how` -> model and cache, whose own commas have no space after them."""
    model, cache, *_ = variant.split(", ")
    return re.sub(r" with random weights$", "", model), cache

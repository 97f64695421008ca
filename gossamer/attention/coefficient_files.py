"""Where coefficients are kept: shipped ones in this package, a user's own in a cache folder."""

import functools
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gossamer._version import __version__
from gossamer.attention.candidates import Candidate
from gossamer.attention.cost import FEATURES, Model
from gossamer.bench.record import device_folder

FORMAT = 1
SHIPPED = Path(__file__).with_name("coefficients")
DEFAULTS = {"cuda": "nvidia-h200.json", "cpu": "cpu.json"}  # for devices that nobody measured


@dataclass(frozen=True)
class Coefficients:
    """A model and where it comes from. known: made for this device, not for another of its kind."""

    model: Model
    device: str
    known: bool = True
    versions: Mapping[str, str] = field(default_factory=dict)


def cache_folder() -> Path:
    """$GOSSAMER_CACHE, else gossamer/ in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("GOSSAMER_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gossamer"


def user_file(device: torch.device) -> Path:
    """What `gossamer tune attention` writes for this device and these versions."""
    torch_version = re.sub(r"[^0-9a-z.]+", "-", torch.__version__.lower())
    name = f"{device_folder(str(device))}_{__version__}_torch-{torch_version}.json"
    return cache_folder() / "attention" / name


def places_of(device: torch.device) -> int:
    """SMs of a GPU, threads of a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return torch.get_num_threads()


@functools.lru_cache(maxsize=64)
def coefficients_of(device: torch.device) -> Coefficients:
    """The user's, else those shipped for this device, else those of another of its kind.

    ValueError, naming the file, where one is damaged.
    """
    places = places_of(device)
    for path in (user_file(device), SHIPPED / f"{device_folder(str(device))}.json"):
        if path.is_file():
            found = read(path)
            return Coefficients(Model(places, found.model.groups), found.device)
    found = read(SHIPPED / DEFAULTS.get(device.type, DEFAULTS["cuda"]))
    return Coefficients(Model(places, found.model.groups), found.device, known=False)


def write(coefficients: Coefficients, path: Path) -> None:
    """At once: another process never sees half a file."""
    content = {
        "format": FORMAT,
        "device": coefficients.device,
        "places": coefficients.model.places,
        "versions": dict(coefficients.versions),
        "groups": {
            name: dict(zip(_names(name), map(_rounded, numbers), strict=True))
            for name, numbers in coefficients.model.groups.items()
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, suffix=".part", delete=False
    ) as part:
        part.write(json.dumps(content, indent=1) + "\n")
    Path(part.name).replace(path)
    coefficients_of.cache_clear()


def read(path: Path) -> Coefficients:
    """ValueError, naming the file, where it is not one of ours."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return _parsed(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: damaged coefficients ({type(error).__name__}: {error}); "
            "delete it, or run `gossamer tune attention` again"
        ) from None


def _parsed(content: Any) -> Coefficients:
    if content["format"] != FORMAT:
        raise ValueError(f"format is {content['format']!r}; must be {FORMAT}")
    places = content["places"]
    if not isinstance(places, int) or places < 1:
        raise ValueError(f"places is {places!r}; must be at least 1")
    groups = {name: _numbers(name, values) for name, values in content["groups"].items()}
    if not groups:
        raise ValueError("there are no groups")
    return Coefficients(Model(places, groups), str(content["device"]), True, content["versions"])


def _numbers(group: str, values: dict[str, float]) -> tuple[float, ...]:
    names = _names(group)
    if set(values) != set(names):
        raise ValueError(f"{group} has {', '.join(values)}; must have {', '.join(names)}")
    numbers = tuple(float(values[name]) for name in names)
    if not all(math.isfinite(x) and x >= 0 for x in numbers):
        raise ValueError(f"{group} has {list(numbers)}; must be numbers >= 0")
    return numbers


def _names(group: str) -> tuple[str, ...]:
    family, found, head_dim = group.rpartition(" d")
    if not found or not head_dim.isdecimal():
        raise ValueError(
            f"group is {group!r}; must be a candidate and a head_dim, as in cuda 64x32 d64"
        )
    return FEATURES[Candidate.parse(family).kernel]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

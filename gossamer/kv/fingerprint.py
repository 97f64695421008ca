"""Which model a calibration belongs to: its dimensions, and a sketch of its K projections.

K projections, because folding V's basis into a model changes those of V and of the output.
"""

import hashlib
import importlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.kv.shape import KVShape

SKETCHES = 4
# Rounding weights to bfloat16 moves a sketch by about 1e-3; those of another model are O(1) away.
TOLERANCE = 1e-2


def import_extra(module: str) -> Any:
    """A module of the `models` extra; ImportError says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(
            f"{package} is needed here and cannot be imported ({error}); "
            "pip install gossamer[models]"
        ) from error


@dataclass(frozen=True)
class Fingerprint:
    """Survives a change of dtype and the folding of V's basis; differs between models.

    sketches: per layer, a few sums of the elements of the K projection with fixed signs, divided
    by its norm: for unrelated weights, numbers of about 1.
    """

    shape: KVShape
    sketches: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if len(self.sketches) != self.shape.layers:
            raise ValueError(f"{len(self.sketches)} sketches; must be {self.shape.layers}")
        for layer, sketch in enumerate(self.sketches):
            if len(sketch) != SKETCHES or not all(math.isfinite(x) for x in sketch):
                raise ValueError(f"sketch {layer} is {sketch}; must be {SKETCHES} finite numbers")

    @classmethod
    def of(cls, shape: KVShape, k_projections: Iterable[Tensor]) -> Self:
        """From the weight [Hk * D, hidden] of the K projection of each layer."""
        return cls(shape, tuple(_sketch(weight) for weight in k_projections))

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The fingerprint that `asdict` made this of; ValueError when it is something else."""
        try:
            shape, sketches = data["shape"], data["sketches"]
            if not isinstance(shape, Mapping) or len(data) != 2:
                raise TypeError(f"unexpected {sorted(data)}")
            return cls(KVShape(**shape), tuple(tuple(map(float, sketch)) for sketch in sketches))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"manifest: fingerprint is damaged: {error}") from None

    def difference(self, other: "Fingerprint") -> str | None:
        """How the two models differ, in words; None when they are the same."""
        if self.shape != other.shape:
            return f"one has {self.shape}, the other {other.shape}"
        for layer, (a, b) in enumerate(zip(self.sketches, other.sketches, strict=True)):
            if max(abs(x - y) for x, y in zip(a, b, strict=True)) > TOLERANCE:
                return f"they have other K projections (first in layer {layer})"
        return None


def _sketch(weight: Tensor) -> tuple[float, ...]:
    wide = weight.detach().to(torch.float64)
    rows, columns = (
        torch.stack([_signs(f"{axis} {i}", size) for i in range(SKETCHES)]).to(wide.device)
        for axis, size in zip(("row", "column"), wide.shape, strict=True)
    )
    sums = (rows @ wide * columns).sum(-1) / wide.norm().clamp_min(1e-30)
    return tuple(round(x, 6) for x in sums.tolist())


def _signs(label: str, count: int) -> Tensor:
    """+1 and -1 from a hash, the same in every version of torch and on every machine."""
    digest = hashlib.shake_256(label.encode()).digest((count + 7) // 8)
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[:count]
    return torch.from_numpy(bits.astype(np.float64) * 2 - 1)

"""Which model a calibration belongs to: its dimensions, and sketches of its K and V projections.

K projections tell models apart; those of V, whether V's basis is folded into the model or not.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gossamer.kv.shape import KVShape

SKETCHES = 4
# Rounding weights to bfloat16 moves a sketch by about 1e-3; those of another model are O(1) away.
TOLERANCE = 1e-2

Sketch = tuple[float, ...]


@dataclass(frozen=True)
class Fingerprint:
    """Survives a change of dtype, and but for v_sketches the folding of V's basis.

    k_sketches, v_sketches: per layer, a few sums of the elements of the K and of the V projection
    with fixed signs, divided by its norm: for unrelated weights, numbers of about 1.
    """

    shape: KVShape
    k_sketches: tuple[Sketch, ...]
    v_sketches: tuple[Sketch, ...]

    def __post_init__(self) -> None:
        for kind, sketches in (("k", self.k_sketches), ("v", self.v_sketches)):
            if len(sketches) != self.shape.layers:
                raise ValueError(f"{len(sketches)} {kind}_sketches; must be {self.shape.layers}")
            for layer, sketch in enumerate(sketches):
                if len(sketch) != SKETCHES or not all(math.isfinite(x) for x in sketch):
                    raise ValueError(
                        f"{kind}_sketch {layer} is {sketch}; must be {SKETCHES} finite numbers"
                    )

    @classmethod
    def of(
        cls, shape: KVShape, k_projections: Iterable[Tensor], v_projections: Iterable[Tensor]
    ) -> Self:
        """From the weights [Hk * D, hidden] of the K and the V projection of each layer."""
        k_sketches = tuple(sketch(weight) for weight in k_projections)
        return cls(shape, k_sketches, tuple(sketch(weight) for weight in v_projections))

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The fingerprint that `asdict` made this of; ValueError when it is something else."""
        try:
            shape, k_sketches, v_sketches = (data[field.name] for field in fields(cls))
            if not isinstance(shape, Mapping) or len(data) != 3:
                raise TypeError(f"unexpected {sorted(data)}")
            return cls(KVShape(**shape), _tuples(k_sketches), _tuples(v_sketches))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"manifest: fingerprint is damaged: {error}") from None

    def difference(self, other: "Fingerprint") -> str | None:
        """How the two models differ in shape or K, in words; None when they do not."""
        if self.shape != other.shape:
            return f"one has {self.shape}, the other {other.shape}"
        layer = _first_difference(self.k_sketches, other.k_sketches)
        return None if layer is None else f"they have other K projections (first in layer {layer})"

    def first_other_v(self, other: "Fingerprint") -> int | None:
        """The first layer with another V projection; None when there is none. For equal shapes."""
        return _first_difference(self.v_sketches, other.v_sketches)


def _first_difference(a: tuple[Sketch, ...], b: tuple[Sketch, ...]) -> int | None:
    for layer, sketches in enumerate(zip(a, b, strict=True)):
        if max(abs(x - y) for x, y in zip(*sketches, strict=True)) > TOLERANCE:
            return layer
    return None


def _tuples(sketches: Any) -> tuple[Sketch, ...]:
    return tuple(tuple(map(float, sketch)) for sketch in sketches)


def sketch(weight: Tensor) -> Sketch:
    """A few sums of the elements of a matrix with fixed signs, divided by its norm."""
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

"""Whose tokens a cache holds: the modules that used it, or a sketch of their weights."""

from typing import Any
from weakref import ref

from torch import Tensor

from gossamer.kv.fingerprint import TOLERANCE, Sketch, sketch


def sketch_of(module: Any) -> Sketch:
    """Of an attention module's K projection, or of its first matrix where it has no such thing."""
    weight = getattr(getattr(module, "k_proj", None), "weight", None)
    if not isinstance(weight, Tensor):
        weight = next((p for p in module.parameters() if p.dim() == 2), None)
    if weight is None or not weight.is_floating_point():
        raise ValueError(f"{type(module).__name__} has no matrix of floats to tell models apart by")
    return sketch(weight)


def check_same(expected: Sketch, module: Any, layer: int) -> None:
    """ValueError when the module is not the one that was sketched."""
    if max(abs(a - b) for a, b in zip(expected, sketch_of(module), strict=True)) > TOLERANCE:
        raise ValueError(
            f"the calibration or saved cache belongs to another model: layer {layer} has other K "
            "projections; make it again with this model"
        )


class Owner:
    """The attention modules of the model that a cache belongs to, by layer.

    sketches: what they must look like, from a calibration or a file; None for any model.
    """

    def __init__(self, layers: int, sketches: tuple[Sketch, ...] | None) -> None:
        self.sketches = sketches
        self._modules: list[ref[Any] | None] = [None] * layers

    def check(self, layer: int, module: Any) -> None:
        """ValueError unless `module` is the one that used this layer before; the first one may."""
        known = self._modules[layer]
        if known is None:
            if self.sketches is not None:
                check_same(self.sketches[layer], module, layer)
            self._modules[layer] = ref(module)
        elif known() is not module:
            raise ValueError(
                "the cache holds tokens of another model; make a SparseCache for each model, or "
                "reset() it"
            )

    def sketched(self) -> list[Sketch]:
        """For a file. ValueError where the model is gone, or has not used all layers."""
        if self.sketches is not None:
            return list(self.sketches)
        modules = [None if known is None else known() for known in self._modules]
        if None in modules:
            raise ValueError("the cache's model is gone; save the cache while it is there")
        return [sketch_of(module) for module in modules]

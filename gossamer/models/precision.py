"""In how many bits a model's weights are held and multiplied."""

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from gossamer.models.matrix import Fp8Matrix, GgufMatrix, Int4Matrix, Int8Matrix, PackedMatrix
from gossamer.models.packed import PackedTensor
from gossamer.models.source import Source
from gossamer.ops.checks import one_of

WEIGHTS = ("auto", "float", "int8", "fp8", "int4")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Precision:
    """What layers' matrices and the head are kept as; None: numbers of the model's dtype.

    turned: what the matrices of attention are kept as where a basis of V is folded into them.
    strict: matrices that do not fit are errors, not kept as numbers. packed: names of the tensors
    that are kept so, others stay numbers; None for all.
    """

    layers: type[PackedMatrix] | None = None
    head: type[PackedMatrix] | None = None
    turned: type[PackedMatrix] | None = None
    strict: bool = False
    packed: frozenset[str] | None = None

    def with_v_basis(self, device: torch.device) -> "Precision":
        """The same where a basis of V is folded into the V and output projections.

        4 bits are too few for what is rounded in a basis that it was not made for: SmolLM2 loses
        0.14 of NLL. The projections of attention have 16 bits then.
        """
        wide = GgufMatrix if device.type == "cpu" else None
        return replace(self, turned=wide if self.layers is Int4Matrix else self.layers)

    def layer_matrix(
        self, columns: int, names: Collection[str], *, turned: bool = False
    ) -> type[PackedMatrix] | None:
        """What a layer's matrix is kept as, made of these tensors; ValueError if it cannot be.

        turned: it is one of attention, with a basis of V.
        """
        if self.packed is not None and not self.packed.issuperset(names):
            return None
        return self._fitting(self.turned if turned else self.layers, columns)

    def head_matrix(self, columns: int) -> type[PackedMatrix] | None:
        """What a head or an embedding is kept as."""
        return self._fitting(self.head, columns)

    def _fitting(self, kind: type[PackedMatrix] | None, columns: int) -> type[PackedMatrix] | None:
        if kind is None or columns % kind.run == 0:
            return kind
        if self.strict:
            raise ValueError(
                f"a matrix has rows of {columns} weights; must be a multiple of {kind.run} for int4"
            )
        return None

    @classmethod
    def of(cls, weights: str, source: Source, device: torch.device) -> "Precision":
        """Raises ValueError for another name than those in WEIGHTS, and for fp8 without hardware.

        auto: as the checkpoint has them, where this device has a kernel for that.
        """
        one_of("weights", weights, WEIGHTS)
        if weights == "auto":
            return _as_stored(source, device)
        if weights == "fp8" and device.type == "cuda" and not _has_fp8(device):
            major, minor = torch.cuda.get_device_capability(device)
            raise ValueError(
                f"weights is fp8, and this GPU has compute capability {major}.{minor}; must be "
                "8.9 or higher, or int8"
            )
        if weights == "fp8" and device.type == "cpu":
            _log.warning(
                "weights=fp8 on a CPU are multiplied as float32 numbers, slower than float "
                "weights: there is no kernel; int8 and int4 have one"
            )
        return _NAMED[weights]


_NAMED = {
    "float": Precision(),
    "int8": Precision(Int8Matrix, Int8Matrix, strict=True),
    "fp8": Precision(Fp8Matrix, strict=True),
    "int4": Precision(Int4Matrix, Int8Matrix, strict=True),
}


def _as_stored(source: Source, device: torch.device) -> Precision:
    packing = source.packing
    if packing is None:
        return Precision()
    if packing == "gguf" and device.type == "cpu":
        return Precision(GgufMatrix, GgufMatrix)
    kinds: dict[str, type[PackedMatrix]] = {"int8": Int8Matrix, "int4": Int4Matrix}
    if device.type == "cuda" and _has_fp8(device):
        kinds["fp8"] = Fp8Matrix
    if packing in kinds:
        # Checkpoints have some matrices in numbers, which stay so.
        packed = (name for name, tensor in source.tensors() if isinstance(tensor, PackedTensor))
        return Precision(kinds[packing], packed=frozenset(packed))
    _log.info("%s: weights in %s are expanded: no kernel for %s", source.name, packing, device.type)
    return Precision()


def _has_fp8(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 9)

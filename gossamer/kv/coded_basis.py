"""What a calibration knows of coded rows of K or V: basis, steps, and what bits are worth."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kv.bases import Basis, invertible
from gossamer.kv.bits import Errors
from gossamer.kv.layouts import Coded
from gossamer.kv.shape import KVShape
from gossamer.ops.kv_profile import BEST_STEP, GROUP_BITS, GROUP_CHANNELS, parse_profile

PARTS = ("mean", "basis", "steps", "errors")
SCALES = ("none", "row")
STEP_BITS = tuple(bits for bits in GROUP_BITS if bits)
# Mean square error of a normal distribution coded with BEST_STEP.
NORMAL_ERROR = {8: 9e-5, 4: 0.0115, 3: 0.0374, 2: 0.119, 0: 1.0}


@dataclass(frozen=True, eq=False)
class CodedBasis:
    """How rows become codes; float32, per layer and KV head. See gossamer.kv.coding.

    (x - mean) @ basis has channels of unit variance, the most important one first.
    mean: [L, Hk, D], zero for V. basis: [L, Hk, D, D], invertible. steps: [L, Hk, 2, 4, D], the
    best step of each channel without and with a scale per row, for 8, 4, 3 and 2 bits. errors:
    [L, Hk, 2, 5, D], what a channel then adds to the loss, and with 0 bits; the same unit for K
    and V. Raises ValueError for other shapes and types, and for numbers that cannot be.
    """

    mean: Tensor
    basis: Tensor
    steps: Tensor
    errors: Tensor

    @classmethod
    def blank(cls, shape: KVShape) -> "CodedBasis":
        """Of normal rows whose channels are worth less and less, each half of them a tenth."""
        dims = shape.head_dim
        heads = (shape.layers, shape.kv_heads)
        steps = torch.tensor([BEST_STEP[bits] for bits in STEP_BITS])[:, None].expand(-1, dims)
        worth = 10.0 ** (-2 * torch.arange(dims) / dims)
        errors = torch.tensor([NORMAL_ERROR[bits] for bits in GROUP_BITS])[:, None] * worth
        return cls(
            torch.zeros(*heads, dims),
            torch.eye(dims).repeat(*heads, 1, 1),
            *(x.repeat(*heads, len(SCALES), 1, 1) for x in (steps, errors)),
        )

    def check(self, shape: KVShape, name: str) -> None:
        heads, dims = (shape.layers, shape.kv_heads), shape.head_dim
        expected = {
            "mean": (*heads, dims),
            "basis": (*heads, dims, dims),
            "steps": (*heads, len(SCALES), len(STEP_BITS), dims),
            "errors": (*heads, len(SCALES), len(GROUP_BITS), dims),
        }
        for part, tensor in self.tensors(name).items():
            size = expected[part.removeprefix(f"{name}_coded_")]
            if tensor.dtype is not torch.float32 or tuple(tensor.shape) != size:
                raise ValueError(
                    f"{part} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}; "
                    f"must be float32 {list(size)}"
                )
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{part} is not finite")
        if not bool((self.steps > 0).all()) or not bool((self.errors >= 0).all()):
            raise ValueError(f"{name}_coded_steps or {name}_coded_errors has negative values")
        if not invertible(self.basis):
            raise ValueError(f"{name}_coded_basis is not invertible")

    def tensors(self, name: str) -> dict[str, Tensor]:
        """By the names that they have in a file; name: k or v."""
        return {f"{name}_coded_{part}": getattr(self, part) for part in PARTS}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], name: str) -> "CodedBasis | None":
        """What `tensors` made these of; None where one is missing."""
        names = [f"{name}_coded_{part}" for part in PARTS]
        return cls(*(tensors[n] for n in names)) if all(n in tensors for n in names) else None

    def table(self) -> Errors:
        """What groups of channels add to the loss by their bits: geometric means over the heads.

        In sums, a few heads that the loss depends on most would decide alone.
        """
        groups = self.errors.double().unflatten(-1, (-1, GROUP_CHANNELS)).sum(-1)
        means = groups.clamp_min(1e-30).log().mean((0, 1)).exp()
        return {scales: means[index].tolist() for index, scales in enumerate(SCALES)}

    def resolved(self, layout: Coded) -> Basis:
        """The basis in units of the steps that these bits have: rows in it are what is coded."""
        matrix = self.basis.double() / self._steps(layout).double().unsqueeze(-2)
        return Basis(matrix, self.mean if bool((self.mean != 0).any()) else None)

    def worth(self, layout: Coded) -> Tensor | None:
        """What the square of an error by one step of each channel adds to the loss, [L, Hk, D].

        Rows with a scale get the one that makes this least; None for those without.
        """
        if layout.scales != "row":
            return None
        lost = self.errors[:, :, SCALES.index("row"), GROUP_BITS.index(0)]  # of a unit of variance
        return lost * self._steps(layout).square()

    def _steps(self, layout: Coded) -> Tensor:
        """Of the bits that each channel has, [L, Hk, D]."""
        assert isinstance(layout.bits, str)
        assert layout.scales is not None
        bits = parse_profile(layout.bits).bits
        steps = self.steps[:, :, SCALES.index(layout.scales)]
        chosen = torch.ones_like(self.mean)  # where there are no bits, anything will do
        for group, width in enumerate(bits):
            if width:
                channels = slice(GROUP_CHANNELS * group, GROUP_CHANNELS * (group + 1))
                chosen[..., channels] = steps[:, :, STEP_BITS.index(width), channels]
        return chosen

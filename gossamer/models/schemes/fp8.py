"""Checkpoints in float8_e4m3fn: a scale per matrix, per row or per block (DeepSeek's)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gossamer.models.packed import BLOCK, PackedTensor
from gossamer.models.schemes.matrices import ScaledMatrix, Stored
from gossamer.models.schemes.scheme import (
    FLOATS,
    Scheme,
    check,
    check_matrix,
    names_setting,
    setting,
)

INVERSE = "weight_scale_inv"  # what weights were divided by: it multiplies codes, as the others do


@dataclass(frozen=True)
class Fp8(Scheme):
    """weight: float8_e4m3fn [n, k]; weight_scale_inv [ceil(n / 128), ceil(k / 128)] if `blocks`.

    Otherwise weight_scale or weight_scale_inv of a single number or one for each row. Scales of
    activations are not used: activations are quantized as they come.
    """

    blocks: bool

    label: ClassVar[str] = "fp8"
    parts: ClassVar[frozenset[str]] = frozenset(
        ("weight", "weight_scale", INVERSE, "input_scale", "activation_scale")
    )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From a quantization_config; ValueError that names what is not supported."""
        setting(config, "fmt", ("e4m3",), "e4m3")
        block = setting(config, "weight_block_size", (None, [BLOCK, BLOCK]))
        ignored = names_setting(config, "modules_to_not_convert", "ignored_layers")
        return cls(ignored, block is not None)

    @property
    def packing(self) -> str:
        return "fp8"

    @property
    def needed(self) -> tuple[str, ...]:
        return ("weight", INVERSE if self.blocks else "weight_scale")

    def matrix(self, module: str, held: Mapping[str, Stored]) -> PackedTensor:
        codes = check_matrix(self.part(module, held, "weight"), ("F8_E4M3",))
        rows, columns = codes.shape
        inverse = self.blocks or (INVERSE in held and "weight_scale" not in held)
        scale = check(self.part(module, held, INVERSE if inverse else "weight_scale"), FLOATS)
        if self.blocks:
            check(scale, FLOATS, (-(-rows // BLOCK), -(-columns // BLOCK)))
            return ScaledMatrix(f"{module}.weight", codes, scale, "block")
        check(scale, FLOATS, (), (1,), (1, 1), (rows,), (rows, 1))
        strategy = "tensor" if tuple(scale.shape) in ((), (1,), (1, 1)) else "channel"
        return ScaledMatrix(f"{module}.weight", codes, scale, strategy)

"""AWQ checkpoints: 4 bits, packed along the output channels in an order of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gossamer.models.packed import PackedTensor
from gossamer.models.schemes.matrices import Int4Matrix, Nibbles, Stored
from gossamer.models.schemes.scheme import (
    FLOATS,
    Scheme,
    check,
    check_matrix,
    group_setting,
    groups_of,
    names_setting,
    setting,
)

NEEDED = ("qweight", "qzeros", "scales")
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # even channels are in the low halves of a word


@dataclass(frozen=True)
class AWQ(Scheme):
    """qweight: int32 [k, n / 8]; qzeros: int32 [k / group, n / 8]; scales: [k / group, n].

    group_size: -1 for whole rows. zero_point: whether qzeros must be there; 8s without.
    """

    group_size: int
    zero_point: bool

    label: ClassVar[str] = "awq"
    parts: ClassVar[frozenset[str]] = frozenset(NEEDED)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From a quantization_config; ValueError that names what is not supported."""
        setting(config, "bits", (4,))
        layout = {key: str(config[key]).lower() for key in ("version", "format") if key in config}
        for key in layout:
            setting(layout, key, ("gemm",))
        return cls(
            names_setting(config, "modules_to_not_convert"),
            group_setting(config, 128),
            setting(config, "zero_point", (True, False), True),
        )

    @property
    def packing(self) -> str:
        return "int4"

    @property
    def needed(self) -> tuple[str, ...]:
        return NEEDED

    def matrix(self, module: str, held: Mapping[str, Stored]) -> PackedTensor:
        name = f"{module}.weight"
        codes = check_matrix(self.part(module, held, "qweight"), ("I32",))
        rows, columns = 8 * codes.shape[1], codes.shape[0]
        groups = groups_of(name, columns, self.group_size)
        scale = check(self.part(module, held, "scales"), FLOATS, (groups, rows))
        zero = None
        if self.zero_point or "qzeros" in held:
            stored = check(self.part(module, held, "qzeros"), ("I32",), (groups, rows // 8))
            zero = Nibbles(stored, 1, ORDER)
        packed = Nibbles(codes, 1, ORDER)
        return Int4Matrix(name, (rows, columns), packed, scale, zero, transposed=True)

"""GPTQ checkpoints: 4 bits, packed along the input channels."""

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
    check_order,
    group_setting,
    groups_of,
    names_setting,
    setting,
)

NEEDED = ("qweight", "qzeros", "scales")


@dataclass(frozen=True)
class GPTQ(Scheme):
    """qweight: int32 [k / 8, n]; qzeros: int32 [k / group, n / 8]; scales: [k / group, n].

    g_idx: int32 [k], the group of each column. zero_shift: 1 where zeros are stored minus one
    (checkpoint_format "gptq"). act_order: whether g_idx has to be there; groups must be neighbours
    in any case.
    """

    group_size: int
    zero_shift: int
    act_order: bool

    label: ClassVar[str] = "gptq"
    parts: ClassVar[frozenset[str]] = frozenset((*NEEDED, "g_idx"))

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From a quantization_config; ValueError that names what is not supported."""
        setting(config, "bits", (4,))
        layout = setting(config, "checkpoint_format", ("gptq", "gptq_v2"), "gptq")
        # "-:module" leaves a module alone, which its tensors say as well.
        for module in config.get("dynamic") or {}:
            if not module.startswith("-:"):
                raise ValueError(f"dynamic has settings for {module!r}; must be the same for all")
        return cls(
            names_setting(config, "modules_to_not_convert"),
            group_setting(config, 128),
            1 if layout == "gptq" else 0,
            setting(config, "desc_act", (True, False), False),
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
        rows, columns = codes.shape[1], 8 * codes.shape[0]
        groups = groups_of(name, columns, self.group_size)
        scale = check(self.part(module, held, "scales"), FLOATS, (groups, rows))
        zero = check(self.part(module, held, "qzeros"), ("I32",), (groups, -(-rows // 8)))
        if self.act_order or "g_idx" in held:
            check_order(self.part(module, held, "g_idx"), columns, columns // groups)
        zeros = Nibbles(zero, 1)
        shape = (rows, columns)
        return Int4Matrix(name, shape, Nibbles(codes, 0), scale, zeros, self.zero_shift, True)

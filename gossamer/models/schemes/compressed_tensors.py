"""compressed-tensors checkpoints: int4 weights, int8 and float8."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from gossamer.models.packed import PackedTensor
from gossamer.models.schemes.matrices import Int4Matrix, Nibbles, ScaledMatrix, Stored, whole
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

PACKED = "pack-quantized"
# format: type and num_bits of its weights, and which weights may share a scale.
FORMATS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    PACKED: ("int", 4, ("group", "channel")),
    "int-quantized": ("int", 8, ("channel",)),
    "float-quantized": ("float", 8, ("tensor", "channel")),
}
PACKINGS = {PACKED: "int4", "int-quantized": "int8", "float-quantized": "fp8"}
DTYPES = {"int-quantized": "I8", "float-quantized": "F8_E4M3"}


@dataclass(frozen=True)
class CompressedTensors(Scheme):
    """weight_packed: int32 [n, k / 8] or weight: [n, k], and weight_scale.

    weight_zero_point: int32 [ceil(n / 8), groups], where weights are not symmetric. strategy and
    group_size: which weights of a matrix share a scale. act_order: whether weight_g_idx has to be
    there; groups must be neighbours in any case. Scales of activations are not used: activations
    are quantized as they come.
    """

    format: str
    strategy: str
    group_size: int
    symmetric: bool
    act_order: bool

    label: ClassVar[str] = "compressed-tensors"
    parts: ClassVar[frozenset[str]] = frozenset(
        [
            "weight",
            "weight_packed",
            "weight_scale",
            "weight_zero_point",
            "weight_shape",
            "weight_g_idx",
            "input_scale",
            "input_zero_point",
        ]
    )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """From a quantization_config; ValueError that names what is not supported."""
        setting(config.get("sparsity_config") or {}, "format", ("dense",), "dense")
        if transforms := (config.get("transform_config") or {}).get("config_groups"):
            raise ValueError(f"transform_config has {', '.join(sorted(transforms))}; must be empty")
        group = _only_group(config)
        setting(group, "targets", (["Linear"],))
        layout = setting(
            {"format": group.get("format") or config.get("format")}, "format", tuple(FORMATS)
        )
        weights = group.get("weights")
        if not isinstance(weights, dict):
            raise ValueError(f"weights is {weights!r}; must be the settings of weights")
        kind, bits, strategies = FORMATS[layout]
        setting(weights, "num_bits", (bits,), 8)
        setting(weights, "type", (kind,), "int")
        strategy = setting(weights, "strategy", strategies, _default_strategy(weights))
        symmetric = (True, False) if layout == PACKED else (True,)
        return cls(
            names_setting(config, "ignore"),
            layout,
            strategy,
            group_setting(weights, rows=False) if strategy == "group" else -1,
            setting(weights, "symmetric", symmetric, True),
            weights.get("actorder") in ("group", "dynamic", True),
        )

    @property
    def packing(self) -> str:
        return PACKINGS[self.format]

    @property
    def needed(self) -> tuple[str, ...]:
        if self.format != PACKED:
            return ("weight", "weight_scale")
        zero = () if self.symmetric else ("weight_zero_point",)
        return ("weight_packed", "weight_scale", *zero)

    def ignores(self, module: str) -> bool:
        """By whole names, and by patterns that begin with re:."""
        return any(
            re.match(name[3:], module) is not None if name.startswith("re:") else name == module
            for name in self.ignored
        )

    def matrix(self, module: str, held: Mapping[str, Stored]) -> PackedTensor:
        return self._packed(module, held) if self.format == PACKED else self._scaled(module, held)

    def _packed(self, module: str, held: Mapping[str, Stored]) -> PackedTensor:
        name = f"{module}.weight"
        codes = check_matrix(self.part(module, held, "weight_packed"), ("I32",))
        shape = codes.shape[0], 8 * codes.shape[1]
        if "weight_shape" in held:
            stored = check(held["weight_shape"], ("I64", "I32"), (2,))
            if (said := whole(stored).tolist()) != list(shape):
                raise ValueError(f"{stored.name} says {said}; must be {list(shape)}")
        groups = groups_of(name, shape[1], self.group_size)
        scale = check(self.part(module, held, "weight_scale"), FLOATS, (shape[0], groups))
        if self.act_order or "weight_g_idx" in held:
            check_order(self.part(module, held, "weight_g_idx"), shape[1], shape[1] // groups)
        zero = None
        if not self.symmetric:
            stored = self.part(module, held, "weight_zero_point")
            zero = Nibbles(check(stored, ("I32",), (-(-shape[0] // 8), groups)), 0)
        elif "weight_zero_point" in held:
            raise ValueError(
                f"{module}.weight_zero_point is there, and the config says that weights are "
                "symmetric"
            )
        return Int4Matrix(name, shape, Nibbles(codes, 1), scale, zero)

    def _scaled(self, module: str, held: Mapping[str, Stored]) -> PackedTensor:
        codes = check_matrix(self.part(module, held, "weight"), (DTYPES[self.format],))
        rows = codes.shape[0]
        shapes = [(rows,), (rows, 1)] if self.strategy == "channel" else [(), (1,), (1, 1)]
        scale = check(self.part(module, held, "weight_scale"), FLOATS, *shapes)
        zero = held.get("weight_zero_point")  # old writers have zeros of symmetric weights as well
        if zero is not None and whole(zero).float().any():
            raise ValueError(f"{zero.name} is not all zeros, and its weights must be symmetric")
        return ScaledMatrix(f"{module}.weight", codes, scale, self.strategy)


def _only_group(config: Mapping[str, Any]) -> dict[str, Any]:
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        found = sorted(groups) if isinstance(groups, dict) else groups
        raise ValueError(f"config_groups is {found}; must be one group, for Linear")
    (group,) = groups.values()
    if not isinstance(group, dict):
        raise ValueError(f"config_groups has {group!r}; must be an object")
    return group


def _default_strategy(weights: Mapping[str, Any]) -> str:
    """As the package has it."""
    size = weights.get("group_size")
    if size is None:
        return "tensor"
    return "channel" if size == -1 else "group"

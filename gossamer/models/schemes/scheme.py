"""What schemes of quantized checkpoints have in common: which modules they hold, and how."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gossamer.models.packed import PackedTensor
from gossamer.models.schemes.matrices import Stored, whole
from gossamer.models.source import StoredTensor
from gossamer.ops.linear_int4 import RUN

FLOATS = ("F16", "BF16", "F32")
CODES = ("I8", "F8_E4M3", "F8_E5M2")  # what a `weight` that is not of floats may be
# Scales of a quantized KV cache: the engine has its own caches.
CACHE = re.compile(r"^(([kqv]|kv|prob|output)_(scale|zero_point))$")


@dataclass(frozen=True)
class Scheme(ABC):
    """How the matrices of a checkpoint are quantized. ignored: modules that are not."""

    ignored: tuple[str, ...]

    label: ClassVar[str]  # quant_method
    parts: ClassVar[frozenset[str]]  # all tensors of a quantized matrix; the others go unchanged

    @property
    @abstractmethod
    def packing(self) -> str:
        """What matrices are stored in: int4, int8 or fp8."""

    @property
    @abstractmethod
    def needed(self) -> tuple[str, ...]:
        """Tensors that each quantized matrix has."""

    @abstractmethod
    def matrix(self, module: str, held: Mapping[str, Stored]) -> PackedTensor:
        """The weight of a module with these tensors; ValueError if they do not fit together."""

    def ignores(self, module: str) -> bool:
        """Whether one of `ignored` is the module, or a run of its dotted name."""
        return any(f".{name.strip('.')}." in f".{module}." for name in self.ignored)

    def tensors(
        self, held: Mapping[str, Stored], places: Collection[str]
    ) -> Iterator[tuple[str, StoredTensor]]:
        """The checkpoint's tensors in Hugging Face's names of the model that was quantized.

        places: names that the model has. GPTQ writes biases of zeros for modules without one.
        """
        modules: dict[str, dict[str, Stored]] = {}
        for name in sorted(held):
            module, _, part = name.rpartition(".")
            if not CACHE.match(part):
                modules.setdefault(module, {})[part] = held[name]
        for module, tensors in modules.items():
            quantized = self._quantized(module, tensors)
            if quantized:
                yield f"{module}.weight", self.matrix(module, tensors)
            for part, tensor in tensors.items():
                if quantized and (part in self.parts or _is_empty_bias(tensor, places)):
                    continue
                yield tensor.name, tensor

    def _quantized(self, module: str, tensors: Mapping[str, Stored]) -> bool:
        """Whether anything but floats is there: matrices may be in floats, ignored or not."""
        found = self.parts & set(tensors)
        if self.ignores(module) or not found:
            return False
        return found != {"weight"} or tensors["weight"].dtype in CODES

    def part(self, module: str, held: Mapping[str, Stored], name: str) -> Stored:
        """A tensor that has to be there."""
        if name not in held:
            *others, last = self.needed
            raise ValueError(
                f"{module}.{name} is missing; {self.label} has {', '.join(others)} and {last} "
                "for each matrix"
            )
        return held[name]


def check(stored: Stored, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> Stored:
    """ValueError unless the tensor is of one of these types and, if there are any, shapes."""
    if stored.dtype not in dtypes:
        raise ValueError(f"{stored.name} is of {stored.dtype}; must be {_or(dtypes)}")
    if shapes and tuple(stored.shape) not in shapes:
        valid = _or([str(list(shape)) for shape in dict.fromkeys(shapes)])
        raise ValueError(f"{stored.name} is {list(stored.shape)}; must be {valid}")
    return stored


def check_matrix(stored: Stored, dtypes: Sequence[str]) -> Stored:
    """As `check`, for any matrix."""
    if len(check(stored, dtypes).shape) != 2:
        raise ValueError(f"{stored.name} is {list(stored.shape)}; must be a matrix")
    return stored


def groups_of(name: str, columns: int, group_size: int) -> int:
    """How many groups a row of the tensor has; -1: one."""
    size = columns if group_size == -1 else group_size
    if columns % RUN or columns % size:
        valid = f"its group_size, {size}" if columns % RUN == 0 else str(RUN)
        raise ValueError(f"{name} has {columns} columns; must be a multiple of {valid}")
    return columns // size


def check_order(stored: Stored, columns: int, group: int) -> None:
    """ValueError unless columns are in groups in their order (-1: as they are)."""
    check(stored, ("I32", "I64"), (columns,))
    index = whole(stored).tolist()
    if index != [column // group for column in range(columns)] and index != [-1] * columns:
        raise ValueError(
            f"{stored.name} has columns in another order (act order, desc_act); must be groups of "
            f"{group} neighbours"
        )


def setting(config: Mapping[str, Any], name: str, valid: Sequence[Any], default: Any = None) -> Any:
    """A setting of a quantization_config that must be one of `valid`."""
    value = config.get(name, default)
    if not any(value == one and type(value) is type(one) for one in valid):
        raise ValueError(f"{name} is {value!r}; must be {_or([repr(one) for one in valid])}")
    return value


def group_setting(config: Mapping[str, Any], default: int | None = None, rows: bool = True) -> int:
    """The group_size; rows: -1, a whole row, is valid too."""
    size = config.get("group_size", default)
    if rows and size == -1 and type(size) is int:
        return -1
    if type(size) is not int or size < 1 or size % RUN:
        whole = " or -1, a whole row" if rows else ""
        raise ValueError(f"group_size is {size!r}; must be a multiple of {RUN}{whole}")
    return size


def names_setting(config: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """Lists of modules, one after the other; None and none at all are empty."""
    found: list[str] = []
    for key in keys:
        value = config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ValueError(f"{key} is {value!r}; must be a list of names of modules")
        found += value
    return tuple(found)


def _is_empty_bias(tensor: Stored, places: Collection[str]) -> bool:
    return tensor.name.endswith(".bias") and tensor.name not in places and not whole(tensor).any()


def _or(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last

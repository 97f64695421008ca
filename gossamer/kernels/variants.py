"""Which specialisations of a Triton kernel exist, so that CI can compile them without a GPU."""

from dataclasses import dataclass, field
from typing import Any

# Triton's names for pointers to the element types that every op supports.
POINTERS = ("*fp32", "*fp16", "*bf16")


@dataclass(frozen=True)
class Variant:
    """One compilation of a kernel: argument types, compile-time values and launch options."""

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4

    def __str__(self) -> str:
        types = ",".join(dict.fromkeys(self.signature.values()))
        constants = ",".join(f"{name}={value}" for name, value in self.constants.items())
        return f"{self.kernel.__name__}[{types}][{constants}]"

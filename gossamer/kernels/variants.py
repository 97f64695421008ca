"""What Triton kernels have in common: limits, and the variants that CI compiles without a GPU."""

from dataclasses import dataclass, field
from typing import Any

# Elements (or rows) per launch, so that indices and their divisions are 32 bits wide: a 64-bit
# division is a function call of a hundred instructions. Launchers split larger tensors.
MAX_ELEMENTS = (1 << 31) - (1 << 16)

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

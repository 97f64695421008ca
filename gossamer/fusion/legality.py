"""Which segments may be computed as one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gossamer.fusion.operators import Attention, Gemm, Norm, Operator
from gossamer.fusion.patterns import tensor_of

MOST_GEMMS = 2  # of a segment; those of one input are computed as one
GEMM_STAGES = 3  # tiles of both operands in flight
GEMM_TILE, GEMM_DEPTH = 128, 64
CPU_BYTES = 1 << 20  # of a core's own cache, about


@dataclass(frozen=True)
class Limits:
    """shared_bytes: of a block of threads; of a core's cache on a CPU."""

    shared_bytes: int

    @classmethod
    def of(cls, device: torch.device) -> "Limits":
        if device.type != "cuda":
            return cls(CPU_BYTES)
        properties = torch.cuda.get_device_properties(device)
        return cls(int(getattr(properties, "shared_memory_per_block_optin", 48 << 10)))


def why_illegal(segment: Sequence[Operator], limits: Limits) -> str | None:
    """Why these operators cannot be one segment; None where they can."""
    if len(segment) > 1 and any(isinstance(each, Attention) for each in segment):
        return "attention is a segment of its own"
    gemms = len({each.x for each in segment if isinstance(each, Gemm)})
    if gemms > MOST_GEMMS:
        return f"it has {gemms} GEMMs of different inputs; must be at most {MOST_GEMMS}"
    needed = shared_bytes(segment)
    if len(segment) > 1 and needed > limits.shared_bytes:
        return f"it needs {needed:,} bytes of shared memory; there are {limits.shared_bytes:,}"
    return None


def shared_bytes(segment: Sequence[Operator]) -> int:
    """What is kept on the chip at a time: tiles of a GEMM, and the row that a norm looks at."""
    found = 0
    for each in segment:
        tensor = tensor_of(each.out)
        assert tensor is not None, "operators have tensors"
        if isinstance(each, Gemm):
            found = max(found, GEMM_STAGES * 2 * GEMM_TILE * GEMM_DEPTH * tensor.element_size())
        if isinstance(each, Norm):
            found = max(found, tensor.element_size() * tensor.shape[-1])
    return found

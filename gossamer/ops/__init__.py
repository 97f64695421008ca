"""Operators: one file each, with its meaning in plain torch and its faster backends.

Call them as functions (`gossamer.ops.fused_add_gelu(x, bias)`), choose a backend with `backend=` or
`use_backend(...)`, or use the registered torch ops (`torch.ops.gossamer.fused_add_gelu`).
"""

from gossamer.ops.backends import BACKENDS, BackendUnavailableError, use_backend
from gossamer.ops.element_wise_mul_add import element_wise_mul_add
from gossamer.ops.fused_add_gelu import fused_add_gelu
from gossamer.ops.fused_residual_rmsnorm import fused_residual_rmsnorm
from gossamer.ops.registry import OPS, Op

__all__ = [
    "BACKENDS",
    "OPS",
    "BackendUnavailableError",
    "Op",
    "element_wise_mul_add",
    "fused_add_gelu",
    "fused_residual_rmsnorm",
    "use_backend",
]

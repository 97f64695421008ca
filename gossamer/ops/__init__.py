"""Operators: one file each, with its meaning in plain torch and its faster backends.

Call them as functions (`gossamer.ops.fused_add_gelu(x, bias)`), choose a backend with `backend=` or
`use_backend(...)`, or use the registered torch ops (`torch.ops.gossamer.fused_add_gelu`).
"""

from gossamer.ops.backends import BACKENDS, BackendUnavailableError, use_backend
from gossamer.ops.decode_attention import DenseWindow, decode_attention
from gossamer.ops.element_wise_mul_add import element_wise_mul_add
from gossamer.ops.fused_add_gelu import fused_add_gelu
from gossamer.ops.fused_residual_rmsnorm import fused_residual_rmsnorm
from gossamer.ops.kv_append import kv_append
from gossamer.ops.kv_block import BlockFormat
from gossamer.ops.kv_pack import kv_pack
from gossamer.ops.kv_unpack import kv_unpack
from gossamer.ops.linear import linear
from gossamer.ops.masked_attention import masked_attention
from gossamer.ops.masked_attention_rows import masked_attention_rows
from gossamer.ops.registry import OPS, Op
from gossamer.ops.rope import rope
from gossamer.ops.silu_mul import silu_mul

__all__ = [
    "BACKENDS",
    "OPS",
    "BackendUnavailableError",
    "BlockFormat",
    "DenseWindow",
    "Op",
    "decode_attention",
    "element_wise_mul_add",
    "fused_add_gelu",
    "fused_residual_rmsnorm",
    "kv_append",
    "kv_pack",
    "kv_unpack",
    "linear",
    "masked_attention",
    "masked_attention_rows",
    "rope",
    "silu_mul",
    "use_backend",
]

"""Operators: one file each, with its meaning in plain torch and its faster backends.

Call them as functions (`gossamer.ops.fused_add_gelu(x, bias)`), choose a backend with `backend=` or
`use_backend(...)`, or use the registered torch ops (`torch.ops.gossamer.fused_add_gelu`).
"""

from gossamer.ops.backends import BACKENDS, BackendUnavailableError, use_backend
from gossamer.ops.bias_act import bias_act
from gossamer.ops.decode_attention import DenseWindow, decode_attention
from gossamer.ops.dequantize_gguf import dequantize_gguf
from gossamer.ops.element_wise_mul_add import element_wise_mul_add
from gossamer.ops.fused_add_gelu import fused_add_gelu
from gossamer.ops.fused_residual_layernorm import fused_residual_layernorm
from gossamer.ops.fused_residual_rmsnorm import fused_residual_rmsnorm
from gossamer.ops.gated_mlp import gated_mlp
from gossamer.ops.gated_mlp_gguf import gated_mlp_gguf
from gossamer.ops.gelu_mul import gelu_mul
from gossamer.ops.gemm_chain import gemm_chain
from gossamer.ops.kv_append import kv_append
from gossamer.ops.kv_block import BlockFormat
from gossamer.ops.kv_pack import kv_pack
from gossamer.ops.kv_page_copy import kv_page_copy
from gossamer.ops.kv_page_swap import kv_page_swap
from gossamer.ops.kv_unpack import kv_unpack
from gossamer.ops.linear import linear
from gossamer.ops.linear_act import linear_act
from gossamer.ops.linear_fp8 import linear_fp8
from gossamer.ops.linear_gguf import linear_gguf
from gossamer.ops.linear_int4 import linear_int4
from gossamer.ops.linear_int8 import linear_int8
from gossamer.ops.linear_int8_weights import linear_int8_weights
from gossamer.ops.linear_norm import linear_norm
from gossamer.ops.masked_attention import masked_attention
from gossamer.ops.masked_attention_rows import masked_attention_rows
from gossamer.ops.prefill_attention import PrefillPlan, prefill_attention
from gossamer.ops.quantize_fp8 import quantize_fp8
from gossamer.ops.quantize_int8 import quantize_int8
from gossamer.ops.registry import OPS, Op
from gossamer.ops.rmsnorm import rmsnorm
from gossamer.ops.rmsnorm_rope import rmsnorm_rope
from gossamer.ops.rope import rope
from gossamer.ops.rope_append import Rotation, Turn, rope_append
from gossamer.ops.rope_inplace import rope_inplace
from gossamer.ops.scaled_softmax import scaled_softmax
from gossamer.ops.silu_mul import silu_mul

__all__ = [
    "BACKENDS",
    "OPS",
    "BackendUnavailableError",
    "BlockFormat",
    "DenseWindow",
    "Op",
    "PrefillPlan",
    "Rotation",
    "Turn",
    "bias_act",
    "decode_attention",
    "dequantize_gguf",
    "element_wise_mul_add",
    "fused_add_gelu",
    "fused_residual_layernorm",
    "fused_residual_rmsnorm",
    "gated_mlp",
    "gated_mlp_gguf",
    "gelu_mul",
    "gemm_chain",
    "kv_append",
    "kv_pack",
    "kv_page_copy",
    "kv_page_swap",
    "kv_unpack",
    "linear",
    "linear_act",
    "linear_fp8",
    "linear_gguf",
    "linear_int4",
    "linear_int8",
    "linear_int8_weights",
    "linear_norm",
    "masked_attention",
    "masked_attention_rows",
    "prefill_attention",
    "quantize_fp8",
    "quantize_int8",
    "rmsnorm",
    "rmsnorm_rope",
    "rope",
    "rope_append",
    "rope_inplace",
    "scaled_softmax",
    "silu_mul",
    "use_backend",
]

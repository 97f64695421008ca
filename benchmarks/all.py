"""Every benchmark in one run, with one table at the end."""

from benchmarks import (
    bias_act,
    decode_attention,
    element_wise_mul_add,
    fused_add_gelu,
    fused_residual_layernorm,
    fused_residual_rmsnorm,
    gelu_mul,
    kv_append,
    kv_pack,
    kv_page_copy,
    kv_page_swap,
    kv_unpack,
    linear,
    masked_attention_rows,
    rmsnorm,
    rmsnorm_rope,
    rope,
    rope_inplace,
    scaled_softmax,
    silu_mul,
)
from gossamer.bench.suite import main

SUITES = (
    bias_act.SUITE,
    element_wise_mul_add.SUITE,
    fused_add_gelu.SUITE,
    fused_residual_layernorm.SUITE,
    fused_residual_rmsnorm.SUITE,
    gelu_mul.SUITE,
    linear.SUITE,
    rmsnorm.SUITE,
    rmsnorm_rope.SUITE,
    rope.SUITE,
    rope_inplace.SUITE,
    scaled_softmax.SUITE,
    silu_mul.SUITE,
    kv_append.SUITE,
    kv_pack.SUITE,
    kv_page_copy.SUITE,
    kv_page_swap.SUITE,
    kv_unpack.SUITE,
    decode_attention.SUITE,
    masked_attention_rows.SUITE,
)

if __name__ == "__main__":
    main(*SUITES)

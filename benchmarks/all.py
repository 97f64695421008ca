"""Every benchmark in one run, with one table at the end."""

from benchmarks import (
    decode_attention,
    element_wise_mul_add,
    fused_add_gelu,
    fused_residual_rmsnorm,
    kv_append,
    kv_pack,
    kv_unpack,
    linear,
    masked_attention_rows,
    rope,
    silu_mul,
)
from gossamer.bench.suite import main

SUITES = (
    element_wise_mul_add.SUITE,
    fused_add_gelu.SUITE,
    fused_residual_rmsnorm.SUITE,
    linear.SUITE,
    rope.SUITE,
    silu_mul.SUITE,
    kv_append.SUITE,
    kv_pack.SUITE,
    kv_unpack.SUITE,
    decode_attention.SUITE,
    masked_attention_rows.SUITE,
)

if __name__ == "__main__":
    main(*SUITES)

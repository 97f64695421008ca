// _C_cuda.so: the CUDA kernels of the ops that bindings.cpp declares.
#include "attention/decode/decode_attention.h"
#include "attention/masked/masked_attention.h"
#include "attention/prefill/prefill_attention.h"
#include "elementwise/bias_act.h"
#include "elementwise/element_wise_mul_add.h"
#include "elementwise/fused_add_gelu.h"
#include "elementwise/gelu_mul.h"
#include "elementwise/silu_mul.h"
#include "gemm/linear_8bit.h"
#include "gemm/linear_act.h"
#include "gemm/mlp.h"
#include "kv/kv_pack.h"
#include "kv/kv_pages.h"
#include "kv/kv_unpack.h"
#include "norm/fused_residual_layernorm.h"
#include "norm/fused_residual_rmsnorm.h"
#include "norm/rmsnorm.h"
#include "rope/rope.h"
#include "softmax/scaled_softmax.h"

STABLE_TORCH_LIBRARY_IMPL(gossamer, CUDA, m) {
  m.impl("bias_act", TORCH_BOX(&gossamer::bias_act_cuda));
  m.impl("decode_attention", gossamer::boxed<&gossamer::decode_attention_cuda>);
  m.impl("element_wise_mul_add", TORCH_BOX(&gossamer::element_wise_mul_add_cuda));
  m.impl("fused_add_gelu", TORCH_BOX(&gossamer::fused_add_gelu_cuda));
  m.impl("fused_residual_layernorm", TORCH_BOX(&gossamer::fused_residual_layernorm_cuda));
  m.impl("gated_mlp", TORCH_BOX(&gossamer::gated_mlp_cuda));
  m.impl("gelu_mul", TORCH_BOX(&gossamer::gelu_mul_cuda));
  m.impl("gemm_chain", TORCH_BOX(&gossamer::gemm_chain_cuda));
  m.impl("kv_append", gossamer::boxed<&gossamer::kv_append_cuda>);
  m.impl("kv_pack", gossamer::boxed<&gossamer::kv_pack_cuda>);
  m.impl("kv_page_copy", TORCH_BOX(&gossamer::kv_page_copy_cuda));
  m.impl("kv_page_swap", TORCH_BOX(&gossamer::kv_page_swap_cuda));
  m.impl("kv_unpack", gossamer::boxed<&gossamer::kv_unpack_cuda>);
  m.impl("fused_residual_rmsnorm", TORCH_BOX(&gossamer::fused_residual_rmsnorm_cuda));
  m.impl("linear_act", TORCH_BOX(&gossamer::linear_act_cuda));
  m.impl("linear_fp8", TORCH_BOX(&gossamer::linear_fp8_cuda));
  m.impl("linear_int8", TORCH_BOX(&gossamer::linear_int8_cuda));
  m.impl("masked_attention", gossamer::boxed<&gossamer::masked_attention_cuda>);
  m.impl("prefill_attention", gossamer::boxed<&gossamer::prefill_attention_cuda>);
  m.impl("rmsnorm", TORCH_BOX(&gossamer::rmsnorm_cuda));
  m.impl("rope", TORCH_BOX(&gossamer::rope_cuda));
  m.impl("rope_inplace", TORCH_BOX(&gossamer::rope_inplace_cuda));
  m.impl("scaled_softmax", TORCH_BOX(&gossamer::scaled_softmax_cuda));
  m.impl("silu_mul", TORCH_BOX(&gossamer::silu_mul_cuda));
}

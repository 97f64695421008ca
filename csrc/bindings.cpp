// _C.so: the schema of every op, one line each, and the CPU kernels.
#include <string>

#include "attention/decode/decode_attention.h"
#include "attention/masked/masked_attention.h"
#include "attention/masked/masked_attention_rows.h"
#include "elementwise/bias_act.h"
#include "elementwise/element_wise_mul_add.h"
#include "elementwise/fused_add_gelu.h"
#include "elementwise/gelu_mul.h"
#include "elementwise/silu_mul.h"
#include "gemm/linear.h"
#include "gemm/linear_8bit.h"
#include "gemm/linear_act.h"
#include "gemm/linear_gguf.h"
#include "gemm/linear_int4.h"
#include "gemm/linear_int8_weights.h"
#include "gemm/linear_norm.h"
#include "gemm/mlp.h"
#include "gemm/quantize_int8.h"
#include "gossamer/cpu/isa.h"
#include "kv/kv_pack.h"
#include "kv/kv_pages.h"
#include "kv/kv_unpack.h"
#include "norm/fused_residual_layernorm.h"
#include "norm/fused_residual_rmsnorm.h"
#include "norm/rmsnorm.h"
#include "rope/rope.h"
#include "rope/rope_append.h"
#include "softmax/scaled_softmax.h"

namespace {
std::string cpu_isa() { return gossamer::cpu::isa_name(); }
}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gossamer, m) {
  m.def("bias_act(Tensor x, Tensor? bias=None, str activation=\"gelu\") -> Tensor");
  m.def("cpu_isa() -> str");
  m.def(
      "decode_attention(Tensor q, Tensor k_blocks, Tensor v_blocks, Tensor page_table, Tensor seq_lens, "
      "Tensor? dense_k, Tensor? dense_v, Tensor? dense_table, int? k_keep, str k_values, str k_scales, int? v_keep, "
      "str v_values, str v_scales, str dense_values, int window, int sink, int page_size, float scale, "
      "float softcap, int sliding) -> (Tensor, Tensor)");
  m.def("dequantize_gguf(Tensor weight, str type, ScalarType dtype) -> Tensor");
  m.def("element_wise_mul_add(Tensor a, Tensor b, Tensor c) -> Tensor");
  m.def("fused_add_gelu(Tensor x, Tensor bias, str approximate=\"none\") -> Tensor");
  m.def(
      "fused_residual_layernorm(Tensor x, Tensor residual, Tensor weight, Tensor? bias=None, float eps=1e-05, "
      "Tensor? input_bias=None) -> (Tensor, Tensor)");
  m.def("gelu_mul(Tensor x, str approximate=\"none\") -> Tensor");
  m.def(
      "kv_append(Tensor x, Tensor(a1!) blocks, Tensor block_table, Tensor positions, int? keep, str values, "
      "str scales, Tensor? weights=None, Tensor? scores=None) -> ()");
  m.def(
      "kv_pack(Tensor x, Tensor(a1!) blocks, Tensor slots, int? keep, str values, str scales, "
      "Tensor? weights=None, Tensor? scores=None) -> ()");
  m.def("kv_page_copy(Tensor(a0!) pages, Tensor source, Tensor target) -> ()");
  m.def("kv_page_swap(Tensor source_pages, Tensor(a1!) target_pages, Tensor source, Tensor target) -> ()");
  m.def(
      "kv_unpack(Tensor blocks, Tensor slots, int head_dim, int? keep, str values, str scales, "
      "ScalarType dtype) -> Tensor");
  m.def("fused_residual_rmsnorm(Tensor x, Tensor residual, Tensor weight, float eps=1e-06) -> (Tensor, Tensor)");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("linear_act(Tensor x, Tensor weight, Tensor? bias=None, str activation=\"gelu\") -> Tensor");
  m.def(
      "linear_fp8(Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale, Tensor? bias, ScalarType dtype) "
      "-> Tensor");
  m.def("linear_gguf(Tensor x, Tensor[] weights, str types, Tensor? bias=None) -> Tensor");
  m.def(
      "gated_mlp(Tensor x, Tensor gate_up, Tensor down, Tensor? gate_up_bias=None, Tensor? down_bias=None, "
      "str activation=\"silu\") -> Tensor");
  m.def(
      "gated_mlp_gguf(Tensor x, Tensor[] gate_up, str gate_up_types, Tensor[] down, str down_types, "
      "Tensor? gate_up_bias=None, Tensor? down_bias=None) -> Tensor");
  m.def(
      "gemm_chain(Tensor x, Tensor w1, Tensor w2, Tensor? b1=None, Tensor? b2=None, str activation=\"gelu\") "
      "-> Tensor");
  m.def("linear_int4(Tensor x, Tensor codes, Tensor scale, Tensor zero, Tensor? bias=None) -> Tensor");
  m.def(
      "linear_int8(Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale, Tensor? bias, ScalarType dtype) "
      "-> Tensor");
  m.def("linear_int8_weights(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias=None) -> Tensor");
  m.def(
      "linear_norm(Tensor x, Tensor weight, Tensor residual, Tensor norm_weight, Tensor? bias=None, "
      "Tensor? norm_bias=None, str norm=\"rms\", float eps=1e-06) -> (Tensor, Tensor)");
  m.def(
      "masked_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor tiles, Tensor bits, Tensor order, "
      "Tensor? work, Tensor? bias, float scale, float softcap, bool with_lse) -> (Tensor, Tensor)");
  m.def(
      "masked_attention_rows(Tensor q, Tensor k, Tensor v, Tensor row_offsets, Tensor keys, Tensor? bias, int batch, "
      "int heads, float scale, float softcap) -> (Tensor, Tensor)");
  m.def(
      "prefill_attention(Tensor q, Tensor k, Tensor v, Tensor sequences, Tensor tiles, Tensor? far_k, Tensor? far_v, "
      "float scale, int window, int sink, int sliding) -> Tensor");
  m.def("quantize_int8(Tensor x) -> (Tensor, Tensor)");
  m.def("rmsnorm(Tensor x, Tensor weight, float eps=1e-06) -> Tensor");
  m.def(
      "rmsnorm_rope(Tensor x, Tensor weight, Tensor positions, Tensor cos, Tensor sin, float eps=1e-06, "
      "bool interleaved=False) -> Tensor");
  m.def("rope(Tensor x, Tensor positions, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor");
  m.def(
      "rope_append(Tensor qkv, Tensor positions, Tensor cos, Tensor sin, Tensor(a4!) k_blocks, Tensor(a5!) v_blocks, "
      "Tensor slots, Tensor(a7!) q, Tensor? norm=None, float eps=1e-06, Tensor? matrices=None, "
      "Tensor? offsets=None) -> ()");
  m.def("rope_inplace(Tensor(a0!) x, Tensor positions, Tensor cos, Tensor sin, bool interleaved=False) -> ()");
  m.def("scaled_softmax(Tensor x, float scale=1.) -> Tensor");
  m.def("silu_mul(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gossamer, CPU, m) {
  m.impl("bias_act", TORCH_BOX(&gossamer::bias_act_cpu));
  m.impl("decode_attention", gossamer::boxed<&gossamer::decode_attention_cpu>);
  m.impl("dequantize_gguf", TORCH_BOX(&gossamer::dequantize_gguf_cpu));
  m.impl("element_wise_mul_add", TORCH_BOX(&gossamer::element_wise_mul_add_cpu));
  m.impl("fused_add_gelu", TORCH_BOX(&gossamer::fused_add_gelu_cpu));
  m.impl("fused_residual_layernorm", TORCH_BOX(&gossamer::fused_residual_layernorm_cpu));
  m.impl("gelu_mul", TORCH_BOX(&gossamer::gelu_mul_cpu));
  m.impl("kv_append", gossamer::boxed<&gossamer::kv_append_cpu>);
  m.impl("kv_pack", gossamer::boxed<&gossamer::kv_pack_cpu>);
  m.impl("kv_page_copy", TORCH_BOX(&gossamer::kv_page_copy_cpu));
  m.impl("kv_page_swap", TORCH_BOX(&gossamer::kv_page_swap_cpu));
  m.impl("kv_unpack", gossamer::boxed<&gossamer::kv_unpack_cpu>);
  m.impl("fused_residual_rmsnorm", TORCH_BOX(&gossamer::fused_residual_rmsnorm_cpu));
  m.impl("gated_mlp", TORCH_BOX(&gossamer::gated_mlp_cpu));
  m.impl("gated_mlp_gguf", TORCH_BOX(&gossamer::gated_mlp_gguf_cpu));
  m.impl("gemm_chain", TORCH_BOX(&gossamer::gemm_chain_cpu));
  m.impl("linear", TORCH_BOX(&gossamer::linear_cpu));
  m.impl("linear_act", TORCH_BOX(&gossamer::linear_act_cpu));
  m.impl("linear_gguf", TORCH_BOX(&gossamer::linear_gguf_cpu));
  m.impl("linear_int4", TORCH_BOX(&gossamer::linear_int4_cpu));
  m.impl("linear_int8", TORCH_BOX(&gossamer::linear_int8_cpu));
  m.impl("linear_int8_weights", TORCH_BOX(&gossamer::linear_int8_weights_cpu));
  m.impl("linear_norm", TORCH_BOX(&gossamer::linear_norm_cpu));
  m.impl("masked_attention", gossamer::boxed<&gossamer::masked_attention_cpu>);
  m.impl("masked_attention_rows", gossamer::boxed<&gossamer::masked_attention_rows_cpu>);
  m.impl("quantize_int8", TORCH_BOX(&gossamer::quantize_int8_cpu));
  m.impl("rmsnorm", TORCH_BOX(&gossamer::rmsnorm_cpu));
  m.impl("rmsnorm_rope", TORCH_BOX(&gossamer::rmsnorm_rope_cpu));
  m.impl("rope", TORCH_BOX(&gossamer::rope_cpu));
  m.impl("rope_append", gossamer::boxed<&gossamer::rope_append_cpu>);
  m.impl("rope_inplace", TORCH_BOX(&gossamer::rope_inplace_cpu));
  m.impl("scaled_softmax", TORCH_BOX(&gossamer::scaled_softmax_cpu));
  m.impl("silu_mul", TORCH_BOX(&gossamer::silu_mul_cpu));
}

STABLE_TORCH_LIBRARY_IMPL(gossamer, CompositeExplicitAutograd, m) { m.impl("cpu_isa", TORCH_BOX(&cpu_isa)); }

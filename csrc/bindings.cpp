// _C.so: the schema of every op, one line each, and the CPU kernels.
#include <string>

#include "attention/decode_attention.h"
#include "attention/masked_attention.h"
#include "attention/masked_attention_rows.h"
#include "elementwise/element_wise_mul_add.h"
#include "elementwise/fused_add_gelu.h"
#include "elementwise/silu_mul.h"
#include "gemm/linear.h"
#include "gossamer/cpu/isa.h"
#include "kv/kv_pack.h"
#include "kv/kv_unpack.h"
#include "norm/fused_residual_rmsnorm.h"
#include "rope/rope.h"

namespace {
std::string cpu_isa() { return gossamer::cpu::isa_name(); }
}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gossamer, m) {
  m.def("cpu_isa() -> str");
  m.def(
      "decode_attention(Tensor q, Tensor k_blocks, Tensor v_blocks, Tensor page_table, Tensor seq_lens, "
      "Tensor? dense_k, Tensor? dense_v, Tensor? dense_table, int? k_keep, str k_values, str k_scales, int? v_keep, "
      "str v_values, str v_scales, str dense_values, int window, int sink, int page_size, float scale, "
      "float softcap, int sliding) -> (Tensor, Tensor)");
  m.def("element_wise_mul_add(Tensor a, Tensor b, Tensor c) -> Tensor");
  m.def("fused_add_gelu(Tensor x, Tensor bias, str approximate=\"none\") -> Tensor");
  m.def(
      "kv_append(Tensor x, Tensor(a1!) blocks, Tensor block_table, Tensor positions, int? keep, str values, "
      "str scales, Tensor? weights=None, Tensor? scores=None) -> ()");
  m.def(
      "kv_pack(Tensor x, Tensor(a1!) blocks, Tensor slots, int? keep, str values, str scales, "
      "Tensor? weights=None, Tensor? scores=None) -> ()");
  m.def(
      "kv_unpack(Tensor blocks, Tensor slots, int head_dim, int? keep, str values, str scales, "
      "ScalarType dtype) -> Tensor");
  m.def("fused_residual_rmsnorm(Tensor x, Tensor residual, Tensor weight, float eps=1e-06) -> (Tensor, Tensor)");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def(
      "masked_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor columns, Tensor kinds, Tensor bits, "
      "Tensor order, Tensor? work, Tensor? bias, int batch, int heads, int tile_q, int tile_k, float scale, float "
      "softcap) "
      "-> (Tensor, Tensor)");
  m.def(
      "masked_attention_rows(Tensor q, Tensor k, Tensor v, Tensor row_offsets, Tensor keys, Tensor? bias, int batch, "
      "int heads, float scale, float softcap) -> (Tensor, Tensor)");
  m.def("rope(Tensor x, Tensor positions, Tensor cos, Tensor sin, bool interleaved=False) -> Tensor");
  m.def("silu_mul(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gossamer, CPU, m) {
  m.impl("decode_attention", TORCH_BOX(&gossamer::decode_attention_cpu));
  m.impl("element_wise_mul_add", TORCH_BOX(&gossamer::element_wise_mul_add_cpu));
  m.impl("fused_add_gelu", TORCH_BOX(&gossamer::fused_add_gelu_cpu));
  m.impl("kv_append", TORCH_BOX(&gossamer::kv_append_cpu));
  m.impl("kv_pack", TORCH_BOX(&gossamer::kv_pack_cpu));
  m.impl("kv_unpack", TORCH_BOX(&gossamer::kv_unpack_cpu));
  m.impl("fused_residual_rmsnorm", TORCH_BOX(&gossamer::fused_residual_rmsnorm_cpu));
  m.impl("linear", TORCH_BOX(&gossamer::linear_cpu));
  m.impl("masked_attention", TORCH_BOX(&gossamer::masked_attention_cpu));
  m.impl("masked_attention_rows", TORCH_BOX(&gossamer::masked_attention_rows_cpu));
  m.impl("rope", TORCH_BOX(&gossamer::rope_cpu));
  m.impl("silu_mul", TORCH_BOX(&gossamer::silu_mul_cpu));
}

STABLE_TORCH_LIBRARY_IMPL(gossamer, CompositeExplicitAutograd, m) { m.impl("cpu_isa", TORCH_BOX(&cpu_isa)); }

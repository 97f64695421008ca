// The torch functions of gemm_chain and gated_mlp. Semantics: gossamer/ops/gemm_chain.py, gated_mlp.py
#pragma once

#include "gemm/linear_call.h"

namespace gossamer {

Tensor gemm_chain_cpu(const Tensor& x, const Tensor& w1, const Tensor& w2, const std::optional<Tensor>& b1,
                      const std::optional<Tensor>& b2, std::string activation);
Tensor gemm_chain_cuda(const Tensor& x, const Tensor& w1, const Tensor& w2, const std::optional<Tensor>& b1,
                       const std::optional<Tensor>& b2, std::string activation);
Tensor gated_mlp_cpu(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                     const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                     std::string activation);
Tensor gated_mlp_cuda(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                      const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                      std::string activation);

inline void check_mlp(const char* op, const Tensor& x, const Tensor& first, const char* first_name,
                      const Tensor& second, const char* second_name, int64_t hidden) {
  dtype_of(x, op, "x");
  check_matches(first, x, op, first_name);
  check_weight(x, first, op, first_name);
  check_matches(second, x, op, second_name);
  STD_TORCH_CHECK(hidden >= 1 && second.dim() == 2 && second.size(1) == hidden, op, ": ", second_name,
                  " must have shape [n, m] for m hidden channels");
  STD_TORCH_CHECK(hidden == 1 || second.stride(1) == 1, op, ": rows of ", second_name, " must be contiguous");
}

inline void check_gemm_chain(const Tensor& x, const Tensor& w1, const Tensor& w2, const std::optional<Tensor>& b1,
                             const std::optional<Tensor>& b2) {
  const char* op = "gemm_chain";
  STD_TORCH_CHECK(w1.dim() == 2, op, ": w1 must have 2 dimensions");
  check_mlp(op, x, w1, "w1", w2, "w2", w1.size(0));
  check_bias(b1, x, w1.size(0), op, "b1");
  check_bias(b2, x, w2.size(0), op, "b2");
}

inline void check_gated_mlp(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                            const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                            const std::string& activation) {
  const char* op = "gated_mlp";
  STD_TORCH_CHECK(gate_up.dim() == 2 && gate_up.size(0) % 2 == 0, op, ": gate_up must have an even number of rows");
  const int64_t hidden = gate_up.size(0) / 2;
  check_mlp(op, x, gate_up, "gate_up", down, "down", hidden);
  check_bias(gate_up_bias, x, 2 * hidden, op, "gate_up_bias");
  check_bias(down_bias, x, down.size(0), op, "down_bias");
  STD_TORCH_CHECK(activation == "silu" || activation == "gelu" || activation == "gelu_tanh", op,
                  ": activation must be silu, gelu or gelu_tanh");
}

}  // namespace gossamer

// The torch functions of gemm_chain and gated_mlp. Semantics: gossamer/ops/gemm_chain.py, gated_mlp.py
#pragma once

#include "gemm/linear_call.h"

namespace gossamer {

Tensor gemm_chain_cpu(const Tensor& x, const Tensor& w1, const Tensor& w2, const std::optional<Tensor>& b1,
                      const std::optional<Tensor>& b2, std::string activation);
Tensor gated_mlp_cpu(const Tensor& x, const Tensor& gate_up, const Tensor& down,
                     const std::optional<Tensor>& gate_up_bias, const std::optional<Tensor>& down_bias,
                     std::string activation);

}  // namespace gossamer

// Products on the CPU, and what they end with.
#pragma once

#include "gemm/cpu/linear.kernel.h"
#include "gemm/linear_call.h"

namespace gossamer {

// Runs a product of few rows that is described completely.
void run_linear(const Linear& work);

// activation(x weight^T + bias) * factor + addend for x [..., k], checked already; factor and addend: [..., n], dense,
// or nothing. Few rows by our kernel, rounded once; many by torch's, whose product is rounded before the rest.
struct Ending {
  Activation activation = Activation::none;
  std::optional<Tensor> factor, addend;
};
Tensor finished_product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, const Ending& ending);

}  // namespace gossamer

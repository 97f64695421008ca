// Skinny GEMMs by the kernel in kernel.cuh.
#pragma once

#include "gemm/linear_call.h"
#include "gossamer/cuda/launch.h"

namespace gossamer {

// activation(x weight^T + bias), or activation(x gate^T + bias) * (x up^T + bias) where `weight` is [gate, up].
struct SkinnyGemm {
  const Tensor& weight;
  const std::optional<Tensor>& bias;
  Activation activation = Activation::none;
  bool gated = false;
};

// Whether the kernel takes this number of rows, and this weight [n, k]: on compute capability 9.0, which alone has
// wgmma, 1 to 64 rows of 16-bit elements, k a multiple of 8 (and n of 16, where it is gate and up), rows of weight in
// multiples of 16 bytes.
bool skinny_takes(int64_t rows, const Tensor& weight, bool gated = false);

// x [..., k] through a GEMM, or through two: [..., n]. Everything is checked, by skinny_takes too, and x's device is
// the current one.
Tensor skinny_gemm(const char* op, const Tensor& x, const SkinnyGemm& gemm);
Tensor skinny_gemms(const char* op, const Tensor& x, const SkinnyGemm& first, const SkinnyGemm& second);

}  // namespace gossamer

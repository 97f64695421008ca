// GEMMs on the CPU, with their epilogues.
#pragma once

#include <memory>

#include "gemm/cpu/linear.kernel.h"
#include "gemm/linear_call.h"

namespace gossamer {

// Packs x once for all threads, then has them share the columns of the result. The kernels are those of linear.kernel.h
// or of linear_int8.kernel.h; `elements` of a weight are worth a thread.
template <class Work>
void run_packed(const Work& work, int64_t (*packed_bytes)(const Work&), void (*pack)(const Work&, void*),
                void (*kernel)(const Work&, const void*, int64_t, int64_t), int64_t elements) {
  struct alignas(64) CacheLine {
    char bytes[64];
  };
  const std::unique_ptr<CacheLine[]> packed(new CacheLine[packed_bytes(work) / sizeof(CacheLine) + 1]);
  pack(work, packed.get());
  torch::stable::parallel_for(0, work.n, elements / work.k + 1,
                              [&](int64_t begin, int64_t end) { kernel(work, packed.get(), begin, end); });
}

// Runs a skinny GEMM that is described completely.
void run_linear(const Linear& work);

// activation(x weight^T + bias) * factor + addend for x [..., k], checked already; factor and addend: [..., n], dense,
// or nothing. Skinny ones by our kernel, rounded once; others by torch's, which rounds before the epilogue.
struct Epilogue {
  Activation activation = Activation::none;
  std::optional<Tensor> factor, addend;
};
Tensor linear_with_epilogue(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                            const Epilogue& epilogue);

}  // namespace gossamer

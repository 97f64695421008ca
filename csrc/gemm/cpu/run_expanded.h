// GEMMs on the CPU with weights in few bits, which are expanded to floats.
#pragma once

#include <algorithm>
#include <array>

#include "gemm/cpu/linear.kernel.h"
#include "gemm/cpu/run.h"
#include "gemm/linear_call.h"

namespace gossamer {

template <class Work>
struct ExpandedKernels {
  void (*pack)(const Work&, void*);                              // x, for `multiply`
  void (*multiply)(const Work&, const void*, int64_t, int64_t);  // a few rows of x times some weights
  void (*expand)(const Work&, void*, int64_t, int64_t);          // some weights as numbers
};

// Rows begin .. end-1 of the weights as numbers, by all threads.
template <class Work>
void expand_slab(const Work& work, const ExpandedKernels<Work>& kernels, void* out, int64_t begin, int64_t end) {
  const int64_t row_bytes = work.k * (work.dtype == DType::f32 ? 4 : 2);
  torch::stable::parallel_for(begin, end, 16384 / work.k + 1, [&](int64_t first, int64_t last) {
    kernels.expand(work, static_cast<char*>(out) + (first - begin) * row_bytes, first, last);
  });
}

// columns of a result = x slab^T, by torch
inline void multiply_slab(const Tensor& x, const Tensor& slab, const Tensor& columns) {
  const Tensor transposed = torch::stable::transpose(slab, 0, 1);
  std::array<StableIValue, 3> stack{torch::stable::detail::from(x), torch::stable::detail::from(transposed),
                                    torch::stable::detail::from(columns)};
  TORCH_ERROR_CODE_CHECK(aoti_torch_call_dispatcher("aten::mm", "out", stack.data()));
  torch::stable::detail::to<Tensor>(stack[0]);  // takes the result that is `columns` again
}

// Many rows: weights are expanded once, a slab of 2 to 4 MB at a time, for torch's GEMM.
template <class Work>
void run_many(const Work& work, const Tensor& x, const Tensor& out, const ExpandedKernels<Work>& kernels) {
  const int64_t most = std::min(work.n, std::max<int64_t>(64, (1 << 20) / work.k));
  const int64_t sizes[] = {most, work.k}, flat[] = {work.rows, work.k}, wide[] = {work.rows, work.n};
  Tensor slab = empty_contiguous(x, {sizes, 2}), results = torch::stable::view(out, {wide, 2});
  const Tensor rows = torch::stable::reshape(x, {flat, 2});
  for (int64_t begin = 0; begin < work.n; begin += most) {
    const int64_t count = std::min(most, work.n - begin);
    expand_slab(work, kernels, slab.mutable_data_ptr(), begin, begin + count);
    multiply_slab(rows, torch::stable::narrow(slab, 0, 0, count), torch::stable::narrow(results, 1, begin, count));
  }
  if (!work.bias) return;
  Linear finish{};
  finish.dtype = work.dtype, finish.rows = work.rows, finish.n = work.n;
  finish.bias = work.bias, finish.out = work.out;
  GOSSAMER_CPU_KERNEL(linear_finish)(finish, 0, work.rows);
}

// x weight^T + bias; all of `work` is set but x, bias and out. Our kernel expands weights in registers, for every 4
// rows of x anew; from 17 rows on, torch's GEMM of expanded weights is faster.
template <class Work>
Tensor run_expanded(Work& work, const Tensor& x, const std::optional<Tensor>& bias,
                    const ExpandedKernels<Work>& kernels) {
  constexpr int64_t kFewRows = 16;
  Tensor out = empty_result(x, work.n);
  if (out.numel() == 0) return out;
  const Rows input = as_rows(x);
  const std::optional<Tensor> dense_bias = dense(bias);
  work.rows = input.count, work.x_stride = input.stride;
  work.x = input.tensor.const_data_ptr(), work.bias = data_of(dense_bias);
  work.out = out.mutable_data_ptr();
  if (work.rows > kFewRows) {
    run_many(work, input.tensor, out, kernels);
    return out;
  }
  const auto packed_bytes = [](const Work& w) { return (w.rows + 3) / 4 * 4 * w.k * 8; };
  // About 5 us of expanding weights: less is not worth a thread.
  run_packed<Work>(work, packed_bytes, kernels.pack, kernels.multiply, 32768);
  return out;
}

}  // namespace gossamer

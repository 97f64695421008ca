// How TMA (sm_90) is told where a tensor lies: the driver's function for it.
#pragma once

#include <cuda.h>

#include "gossamer/cuda/launch.h"

namespace gossamer::cuda {

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded already, so that nothing is linked with it. Throws where the driver has none.
inline TensorMapEncoder tensor_map_encoder(const char* op) {
  static const TensorMapEncoder found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<TensorMapEncoder>(function) : nullptr;
  }();
  STD_TORCH_CHECK(found != nullptr, op, ": the driver has no cuTensorMapEncodeTiled");
  return found;
}

}  // namespace gossamer::cuda

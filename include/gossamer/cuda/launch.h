// The host side of a launch: device, stream and error check.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>

#include <atomic>
#include <optional>

#include "gossamer/torch/tensor.h"

namespace gossamer::cuda {

inline int current_device() {
  int device = 0;
  cudaGetDevice(&device);
  return device;
}

// Makes a device the current one for as long as this lives. Where it is already, nothing is done: torch's guard takes
// 0.3 us.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t device) {
    if (device != current_device()) guard_.emplace(device);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

inline cudaStream_t current_stream(const Tensor& t) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int value = 0;
  cudaDeviceGetAttribute(&value, attribute, current_device());
  return value;
}

// For what has to be done once on each device. Where threads meet here, both do it.
class OncePerDevice {
 public:
  template <class Action>
  void operator()(const Action& action) {
    const int device = current_device();
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;  // devices beyond do it every time
    if (done_.load(std::memory_order_acquire) & bit) return;
    action();
    done_.fetch_or(bit, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> done_{0};
};

inline bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace gossamer::cuda

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gossamer/common.h"

namespace gossamer::cuda {

// Calls `launch` with a value of the element type that `dtype` names.
template <class Launch>
void for_dtype(DType dtype, const Launch& launch) {
  switch (dtype) {
    case DType::f32:
      return launch(float{});
    case DType::f16:
      return launch(__half{});
    case DType::bf16:
      return launch(__nv_bfloat16{});
  }
}

}  // namespace gossamer::cuda

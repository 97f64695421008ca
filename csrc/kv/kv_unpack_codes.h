#pragma once

#include <cuda_runtime_api.h>

#include "gossamer/common.h"
#include "kv/kv_format.h"

namespace gossamer {

// kv_unpack of dense rows of codes.
void unpack_codes(const KvUnpack& work, DType dtype, cudaStream_t stream);

}  // namespace gossamer

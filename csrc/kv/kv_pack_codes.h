#pragma once

#include <cuda_runtime_api.h>

#include "gossamer/common.h"
#include "kv/kv_format.h"

namespace gossamer {

// kv_pack and kv_append of dense rows of codes.
void pack_codes(const KvPack& work, DType dtype, cudaStream_t stream);

}  // namespace gossamer

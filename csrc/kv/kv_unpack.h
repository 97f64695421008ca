// The torch functions of kv_unpack. Semantics: gossamer/ops/kv_unpack.py
#pragma once

#include "kv/kv_call.h"

namespace gossamer {

Tensor kv_unpack_cpu(const KvUnpackArguments& arguments);
Tensor kv_unpack_cuda(const KvUnpackArguments& arguments);

}  // namespace gossamer

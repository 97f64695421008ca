#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "kv/kv_format.h"

namespace gossamer {

// Rows begin .. end-1 of all heads. work.slots are checked: -1 or in range.
GOSSAMER_DECLARE_CPU_KERNEL(void, kv_unpack, const KvUnpack& work, DType dtype, int64_t begin, int64_t end)

}  // namespace gossamer

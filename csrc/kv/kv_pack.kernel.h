#pragma once

#include "gossamer/common.h"
#include "gossamer/cpu/isa.h"
#include "kv/kv_format.h"

namespace gossamer {

// Tiles begin .. end-1, where tile i is rows 32 (i / heads) .. +31 of head i % heads. work.slots are
// slots, checked: -1 or in range.
GOSSAMER_DECLARE_CPU_KERNEL(void, kv_pack, const KvPack& work, DType dtype, int64_t begin, int64_t end)

}  // namespace gossamer

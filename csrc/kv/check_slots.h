#pragma once

#include <cstdint>

namespace gossamer {

// Before blocks are written: every slot, on the host, is -1 or inside, none is there twice.
void check_slots(const char* op, const int64_t* slots, int64_t count, int64_t num_blocks);

}  // namespace gossamer

// Weights in the blocks of GGUF files: which types there are, and how many bytes they take.
#pragma once

#include <cstdint>

namespace gossamer {

enum class GgufType { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

struct GgufBlock {
  const char* name;  // as in gossamer/ops/gguf.py
  int weights, bytes;
};

// In the order of GgufType.
constexpr GgufBlock kGgufBlocks[] = {
    {"f32", 1, 4},    {"f16", 1, 2},    {"bf16", 1, 2},     {"q4_0", 32, 18},   {"q4_1", 32, 20},   {"q5_0", 32, 22},
    {"q5_1", 32, 24}, {"q8_0", 32, 34}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210},
};

// Rows of one matrix: [rows, k], `stride` bytes apart.
struct GgufRows {
  GgufType type;
  int64_t rows;
  const uint8_t* data;
  int64_t stride;
};

}  // namespace gossamer

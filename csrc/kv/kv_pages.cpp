#include "kv/kv_pages.h"

#include <cstring>

namespace gossamer {
namespace {

// In pieces, so that a few large pages keep all threads busy too. memcpy is as fast as any kernel of ours would be.
void move_pages(const PageMoves& moves) {
  constexpr int64_t piece = 256 << 10;
  if (moves.count == 0 || moves.page_bytes == 0) return;
  const int64_t pieces = (moves.page_bytes - 1) / piece + 1;
  const int64_t grain = (64 << 10) / (moves.page_bytes < piece ? moves.page_bytes : piece) + 1;  // about 4 us
  torch::stable::parallel_for(0, moves.count * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t work = begin; work < end; ++work) {
      const int64_t i = work / pieces, start = work % pieces * piece;
      const int64_t left = moves.page_bytes - start;
      const char* from = moves.source + moves.from[i * moves.from_step] * moves.source_stride + start;
      char* to = moves.target + moves.to[i * moves.to_step] * moves.target_stride + start;
      std::memcpy(to, from, left < piece ? left : piece);
    }
  });
}

}  // namespace

void kv_page_copy_cpu(const Tensor& pages, const Tensor& source, const Tensor& target) {
  move_pages(prepare_kv_page_copy(pages, source, target));
}

void kv_page_swap_cpu(const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                      const Tensor& target) {
  move_pages(prepare_kv_page_swap(source_pages, target_pages, source, target));
}

}  // namespace gossamer

#include <algorithm>
#include <vector>

#include "kv/kv_pages.h"

namespace gossamer {
namespace {

// Pages lie apart, each of them without gaps.
void check_pool(const char* op, const char* name, const Tensor& pages) {
  STD_TORCH_CHECK(pages.numel() == 0 || pages.const_data_ptr() != nullptr, op, ": ", name, " has no memory");
  STD_TORCH_CHECK(pages.dim() >= 2, op, ": ", name, " must have at least 2 dimensions");
  int64_t step = 1;
  bool dense = true;
  for (int64_t d = pages.dim() - 1; d >= 1; --d) {
    dense = dense && (pages.size(d) == 1 || pages.stride(d) == step);
    step *= pages.size(d);
  }
  dense = dense && (pages.size(0) <= 1 || pages.stride(0) >= step);
  STD_TORCH_CHECK(pages.numel() == 0 || dense, op, ": pages of ", name, " must be contiguous and lie apart");
}

void check_indices(const char* op, const char* name, const Tensor& index, int64_t num_pages) {
  STD_TORCH_CHECK(index.scalar_type() == ScalarType::Long, op, ": ", name, " must be int64");
  STD_TORCH_CHECK(index.dim() == 1, op, ": ", name, " must have 1 dimension");
  STD_TORCH_CHECK(index.is_cpu(), op, ": ", name, " must be on the CPU");
  STD_TORCH_CHECK(index.numel() == 0 || index.const_data_ptr() != nullptr, op, ": ", name, " has no memory");
  const int64_t* values = static_cast<const int64_t*>(index.const_data_ptr());
  for (int64_t i = 0; i < index.size(0); ++i) {
    const int64_t page = values[i * index.stride(0)];
    STD_TORCH_CHECK(page >= 0 && page < num_pages, op, ": a page of ", name, " is ", page, "; must be 0 to ",
                    num_pages - 1);
  }
}

// The moves, after a check that no target is named twice.
PageMoves prepare(const char* op, const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                  const Tensor& target, std::vector<int64_t>& sorted) {
  check_indices(op, "source", source, source_pages.size(0));
  check_indices(op, "target", target, target_pages.size(0));
  STD_TORCH_CHECK(source.size(0) == target.size(0), op, ": source and target must have one length");
  PageMoves moves{};
  moves.source = static_cast<const char*>(source_pages.const_data_ptr());
  moves.target = static_cast<char*>(target_pages.mutable_data_ptr());
  const int64_t element = target_pages.element_size();
  moves.source_stride = source_pages.stride(0) * element;
  moves.target_stride = target_pages.stride(0) * element;
  moves.page_bytes = target_pages.size(0) > 0 ? target_pages.numel() / target_pages.size(0) * element : 0;
  moves.from = static_cast<const int64_t*>(source.const_data_ptr());
  moves.to = static_cast<const int64_t*>(target.const_data_ptr());
  moves.from_step = source.stride(0);
  moves.to_step = target.stride(0);
  moves.count = source.size(0);
  sorted.resize(moves.count);
  for (int64_t i = 0; i < moves.count; ++i) sorted[i] = moves.to[i * moves.to_step];
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  STD_TORCH_CHECK(twice == sorted.end(), op, ": page ", *twice, " is a target twice; must be one once");
  return moves;
}

}  // namespace

PageMoves prepare_kv_page_copy(const Tensor& pages, const Tensor& source, const Tensor& target) {
  const char* op = "kv_page_copy";
  check_pool(op, "pages", pages);
  std::vector<int64_t> targets;
  const PageMoves moves = prepare(op, pages, pages, source, target, targets);
  for (int64_t i = 0; i < moves.count; ++i) {
    const int64_t page = moves.from[i * moves.from_step];
    STD_TORCH_CHECK(!std::binary_search(targets.begin(), targets.end(), page), op, ": page ", page,
                    " is a source and a target; must be one of them");
  }
  return moves;
}

PageMoves prepare_kv_page_swap(const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                               const Tensor& target) {
  const char* op = "kv_page_swap";
  check_pool(op, "source_pages", source_pages);
  check_pool(op, "target_pages", target_pages);
  STD_TORCH_CHECK(source_pages.scalar_type() == target_pages.scalar_type(), op, ": pools must have one dtype");
  bool same = source_pages.dim() == target_pages.dim();
  for (int64_t d = 1; same && d < source_pages.dim(); ++d) same = source_pages.size(d) == target_pages.size(d);
  STD_TORCH_CHECK(same, op, ": pages of both pools must have one shape");
  std::vector<int64_t> targets;
  const PageMoves moves = prepare(op, source_pages, target_pages, source, target, targets);
  const char* source_end = moves.source + moves.source_stride * (source_pages.size(0) - 1) + moves.page_bytes;
  const char* target_end = moves.target + moves.target_stride * (target_pages.size(0) - 1) + moves.page_bytes;
  const bool apart = moves.count == 0 || moves.target >= source_end || moves.source >= target_end;
  STD_TORCH_CHECK(apart, op, ": source_pages and target_pages share memory");
  return moves;
}

}  // namespace gossamer

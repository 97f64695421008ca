// The torch functions of kv_page_copy and kv_page_swap, and what they share.
// Semantics: gossamer/ops/kv_page_copy.py, kv_page_swap.py
#pragma once

#include "gossamer/torch/tensor.h"

namespace gossamer {

void kv_page_copy_cpu(const Tensor& pages, const Tensor& source, const Tensor& target);
void kv_page_copy_cuda(const Tensor& pages, const Tensor& source, const Tensor& target);
void kv_page_swap_cpu(const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                      const Tensor& target);
void kv_page_swap_cuda(const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                       const Tensor& target);

// Checked: page to[i * to_step] of the target becomes page from[i * from_step] of the source, for i < count.
struct PageMoves {
  const char* source;
  char* target;
  int64_t source_stride, target_stride, page_bytes;  // bytes
  const int64_t *from, *to;                          // on the CPU
  int64_t from_step, to_step, count;
};

PageMoves prepare_kv_page_copy(const Tensor& pages, const Tensor& source, const Tensor& target);
PageMoves prepare_kv_page_swap(const Tensor& source_pages, const Tensor& target_pages, const Tensor& source,
                               const Tensor& target);

}  // namespace gossamer

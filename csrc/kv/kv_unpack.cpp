#include "kv/kv_unpack.h"

#include "kv/kv_unpack.kernel.h"

namespace gossamer {

Tensor kv_unpack_cpu(const KvUnpackArguments& arguments) {
  const KvUnpackCall call = prepare_kv_unpack(arguments);
  const int64_t capacity = call.work.num_blocks * kBlockTokens;
  for (int64_t i = 0; i < call.work.rows; ++i) {
    const int64_t slot = call.work.slots[i];
    STD_TORCH_CHECK(slot >= -1 && slot < capacity, "kv_unpack: a slot is ", slot, "; must be -1 to ", capacity - 1);
  }
  const auto kernel = GOSSAMER_CPU_KERNEL(kv_unpack);
  const int64_t grain = 64 / (call.work.heads + 1) + 1;  // rows of a few hundred ns
  torch::stable::parallel_for(0, call.work.rows, grain,
                              [&](int64_t begin, int64_t end) { kernel(call.work, call.dtype, begin, end); });
  return call.out;
}

}  // namespace gossamer

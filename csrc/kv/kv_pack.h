// The torch functions of kv_pack and kv_append. Semantics: gossamer/ops/kv_pack.py, kv_append.py
#pragma once

#include "kv/kv_call.h"

namespace gossamer {

void kv_pack_cpu(const KvPackArguments& arguments);
void kv_pack_cuda(const KvPackArguments& arguments);
void kv_append_cpu(const KvAppendArguments& arguments);
void kv_append_cuda(const KvAppendArguments& arguments);

}  // namespace gossamer

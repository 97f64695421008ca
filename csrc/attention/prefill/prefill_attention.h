// The torch function of prefill_attention. Semantics: gossamer/ops/prefill_attention.py
#pragma once

#include "attention/prefill/call.h"

namespace gossamer {

Tensor prefill_attention_cuda(const PrefillArguments& arguments);

}  // namespace gossamer

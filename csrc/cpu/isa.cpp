#include "gossamer/cpu/isa.h"

#include <cstdlib>
#include <cstring>

namespace gossamer::cpu {
namespace {

Isa best_of_this_cpu() {
#ifdef GOSSAMER_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::generic;
}

Isa choose() {
  const Isa best = best_of_this_cpu();
  const char* wanted = std::getenv("GOSSAMER_ISA");
  if (wanted == nullptr) return best;
  if (!std::strcmp(wanted, "generic")) return Isa::generic;
  if (!std::strcmp(wanted, "avx2") && best >= Isa::avx2) return Isa::avx2;
  return best;
}

}  // namespace

Isa isa() {
  static const Isa chosen = choose();
  return chosen;
}

const char* isa_name() {
  switch (isa()) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::generic:
      break;
  }
  return "generic";
}

}  // namespace gossamer::cpu

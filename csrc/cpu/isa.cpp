#include "gossamer/cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace gossamer::cpu {
namespace {

Isa best_of_this_cpu() {
#ifdef __x86_64__
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
  if (wanted == nullptr || !std::strcmp(wanted, "avx512")) return best;
  if (!std::strcmp(wanted, "generic")) return Isa::generic;
  if (!std::strcmp(wanted, "avx2")) return best < Isa::avx2 ? best : Isa::avx2;
  throw std::invalid_argument("GOSSAMER_ISA is '" + std::string(wanted) + "'; must be generic, avx2 or avx512");
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

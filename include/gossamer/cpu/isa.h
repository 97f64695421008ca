// Which instruction set the CPU kernels run with.
#pragma once

namespace gossamer::cpu {

enum class Isa { generic, avx2, avx512 };

// The best one this CPU has, or a lower one named by GOSSAMER_ISA (generic, avx2, avx512) in the
// environment. Fixed at the first call; throws for another name.
Isa isa();
const char* isa_name();

}  // namespace gossamer::cpu

// Declares a kernel for every instruction set: gossamer::avx2::name and so on.
#define GOSSAMER_DECLARE_CPU_KERNEL(result, name, ...) \
  namespace generic {                                  \
  result name(__VA_ARGS__);                            \
  }                                                    \
  namespace avx2 {                                     \
  result name(__VA_ARGS__);                            \
  }                                                    \
  namespace avx512 {                                   \
  result name(__VA_ARGS__);                            \
  }

// The declared kernel for this CPU, as a function pointer.
#if defined(__x86_64__)
#define GOSSAMER_CPU_KERNEL(name)                                        \
  (::gossamer::cpu::isa() == ::gossamer::cpu::Isa::avx512 ? avx512::name \
   : ::gossamer::cpu::isa() == ::gossamer::cpu::Isa::avx2 ? avx2::name   \
                                                          : generic::name)
#else
#define GOSSAMER_CPU_KERNEL(name) (generic::name)
#endif

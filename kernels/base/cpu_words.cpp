#include "kernels/base/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace sparsellm {

CpuWords read_cpu_words() {
  CpuWords words;
#if defined(__x86_64__)
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
    words.leaf1_ecx = ecx;
  }
  uint32_t subleaves = 0;
  if (__get_cpuid_count(7, 0, &subleaves, &ebx, &ecx, &edx) != 0) {
    words.leaf7_ebx = ebx;
    words.leaf7_ecx = ecx;
    words.leaf7_edx = edx;
  }
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) {
    words.leaf7_1_eax = eax;
  }
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) {
    words.extended1_ecx = ecx;
  }
  constexpr uint32_t kOsxsave = 1u << 27;  // without it there is no instruction xgetbv
  if ((words.leaf1_ecx & kOsxsave) != 0) {
    asm volatile("xgetbv" : "=a"(words.xcr0), "=d"(edx) : "c"(0));
  }
#endif
  return words;
}

}  // namespace sparsellm

#include "kernels/base/cpu_features.h"

namespace sparsellm {
namespace {

constexpr uint32_t kYmm = 0x6;   // the state that has to be saved: xmm and the upper half of ymm
constexpr uint32_t kZmm = 0xe6;  // these, mask registers, zmm
constexpr uint32_t kNone = 0x0;

struct Feature {
  const char* name;
  uint32_t CpuWords::*word;
  int bit;
  uint32_t state;
};

constexpr Feature kFeatures[] = {
    {"SSE3", &CpuWords::leaf1_ecx, 0, kNone},
    {"SSSE3", &CpuWords::leaf1_ecx, 9, kNone},
    {"FMA", &CpuWords::leaf1_ecx, 12, kYmm},
    {"SSE4.1", &CpuWords::leaf1_ecx, 19, kNone},
    {"SSE4.2", &CpuWords::leaf1_ecx, 20, kNone},
    {"MOVBE", &CpuWords::leaf1_ecx, 22, kNone},
    {"POPCNT", &CpuWords::leaf1_ecx, 23, kNone},
    {"AVX", &CpuWords::leaf1_ecx, 28, kYmm},
    {"F16C", &CpuWords::leaf1_ecx, 29, kYmm},
    {"BMI1", &CpuWords::leaf7_ebx, 3, kNone},
    {"AVX2", &CpuWords::leaf7_ebx, 5, kYmm},
    {"BMI2", &CpuWords::leaf7_ebx, 8, kNone},
    {"AVX512F", &CpuWords::leaf7_ebx, 16, kZmm},
    {"AVX512DQ", &CpuWords::leaf7_ebx, 17, kZmm},
    {"AVX512IFMA", &CpuWords::leaf7_ebx, 21, kZmm},
    {"AVX512CD", &CpuWords::leaf7_ebx, 28, kZmm},
    {"AVX512BW", &CpuWords::leaf7_ebx, 30, kZmm},
    {"AVX512VL", &CpuWords::leaf7_ebx, 31, kZmm},
    {"AVX512VBMI", &CpuWords::leaf7_ecx, 1, kZmm},
    {"AVX512VBMI2", &CpuWords::leaf7_ecx, 6, kZmm},
    {"AVX512VNNI", &CpuWords::leaf7_ecx, 11, kZmm},
    {"AVX512BITALG", &CpuWords::leaf7_ecx, 12, kZmm},
    {"AVX512VPOPCNTDQ", &CpuWords::leaf7_ecx, 14, kZmm},
    {"AVX512FP16", &CpuWords::leaf7_edx, 23, kZmm},
    {"AVXVNNI", &CpuWords::leaf7_1_eax, 4, kYmm},
    {"AVX512BF16", &CpuWords::leaf7_1_eax, 5, kZmm},
    {"LZCNT", &CpuWords::extended1_ecx, 5, kNone},
};

bool same(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) {
    ++a;
    ++b;
  }
  return *a == *b;
}

bool has(const CpuWords& cpu, const char* name) {
  for (const Feature& feature : kFeatures) {
    if (same(feature.name, name)) {
      return (cpu.*feature.word >> feature.bit & 1) != 0 &&
             (cpu.xcr0 & feature.state) == feature.state;
    }
  }
  return false;
}

}  // namespace

int missing_cpu_features(const char* const* required, const CpuWords& cpu, char* text,
                         size_t size) {
  int missing = 0;
  size_t used = 0;
  const auto append = [&](const char* word) {
    for (; *word != '\0' && used + 1 < size; ++word) {
      text[used++] = *word;
    }
  };
  for (; *required != nullptr; ++required) {
    if (!has(cpu, *required)) {
      append(missing > 0 ? ", " : "");
      append(*required);
      ++missing;
    }
  }
  if (size > 0) {
    text[used] = '\0';
  }
  return missing;
}

}  // namespace sparsellm

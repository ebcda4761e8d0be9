// The one file of the check that is compiled as the rest of the program: it holds no code.

#include "tools/cli/cpu_requirements.h"

namespace sparsellm {

constinit const char kCpuArch[] = SPARSELLM_CPU_ARCH;

constinit const char* const kRequiredCpuFeatures[] = {
#if defined(__x86_64__)
#ifdef __SSE3__
    "SSE3",
#endif
#ifdef __SSSE3__
    "SSSE3",
#endif
#ifdef __SSE4_1__
    "SSE4.1",
#endif
#ifdef __SSE4_2__
    "SSE4.2",
#endif
#ifdef __POPCNT__
    "POPCNT",
#endif
#ifdef __AVX__
    "AVX",
#endif
#ifdef __AVX2__
    "AVX2",
#endif
#ifdef __FMA__
    "FMA",
#endif
#ifdef __F16C__
    "F16C",
#endif
#ifdef __BMI__
    "BMI1",
#endif
#ifdef __BMI2__
    "BMI2",
#endif
#ifdef __LZCNT__
    "LZCNT",
#endif
#ifdef __MOVBE__
    "MOVBE",
#endif
#ifdef __AVX512F__
    "AVX512F",
#endif
#ifdef __AVX512BW__
    "AVX512BW",
#endif
#ifdef __AVX512CD__
    "AVX512CD",
#endif
#ifdef __AVX512DQ__
    "AVX512DQ",
#endif
#ifdef __AVX512VL__
    "AVX512VL",
#endif
#ifdef __AVX512IFMA__
    "AVX512IFMA",
#endif
#ifdef __AVX512VBMI__
    "AVX512VBMI",
#endif
#ifdef __AVX512VBMI2__
    "AVX512VBMI2",
#endif
#ifdef __AVX512VNNI__
    "AVX512VNNI",
#endif
#ifdef __AVX512BITALG__
    "AVX512BITALG",
#endif
#ifdef __AVX512VPOPCNTDQ__
    "AVX512VPOPCNTDQ",
#endif
#ifdef __AVX512FP16__
    "AVX512FP16",
#endif
#ifdef __AVX512BF16__
    "AVX512BF16",
#endif
#ifdef __AVXVNNI__
    "AVXVNNI",
#endif
#endif
    nullptr,
};

}  // namespace sparsellm

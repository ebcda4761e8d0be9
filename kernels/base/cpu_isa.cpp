#include "kernels/base/cpu_isa.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/error.h"

namespace sparsellm {
namespace {

bool has_all(const char* const* features) {
  return missing_cpu_features(features, read_cpu_words(), nullptr, 0) == 0;
}

CpuIsa find_best() {
  static constexpr const char* kAvx2[] = {"AVX2", "FMA",   "F16C",   "BMI1",
                                          "BMI2", "LZCNT", "POPCNT", nullptr};
  static constexpr const char* kAvx512[] = {"AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", nullptr};
  static constexpr const char* kVbmi2[] = {"AVX512VBMI", "AVX512VBMI2", "AVX512VPOPCNTDQ", nullptr};
  if (!has_all(kAvx2)) {
    return CpuIsa::portable;
  }
  if (!has_all(kAvx512)) {
    return CpuIsa::avx2;
  }
  return has_all(kVbmi2) ? CpuIsa::avx512_vbmi2 : CpuIsa::avx512;
}

}  // namespace

CpuIsa best_cpu_isa() {
  static const CpuIsa best = find_best();
  return best;
}

std::string_view name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable:
      return "portable";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::avx512_vbmi2:
      return "avx512_vbmi2";
  }
  return "";
}

CpuIsa parse_cpu_isa(std::string_view text) {
  const CpuIsa best = best_cpu_isa();
  if (text == "auto") {
    return best;
  }
  for (const CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512}) {
    if (text == name_of(isa)) {
      require(isa <= best, "this CPU, or the system on it, has no {}; the best that it has is {}",
              text, name_of(best));
      return isa == CpuIsa::avx512 ? best : isa;
    }
  }
  fail("\"{}\" is no instruction set of a CPU; use auto, portable, avx2 or avx512", text);
}

}  // namespace sparsellm

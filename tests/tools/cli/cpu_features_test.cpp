// CPUs that have not what a build needs.

#include "kernels/base/cpu_features.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tools/run_program.h"
#include "tools/cli/cpu_requirements.h"

namespace sparsellm {
namespace {

using testing::Outcome;

// As cpuid describes them.
constexpr CpuWords kNehalem{.leaf1_ecx = 0x0098e3fd & ~(1u << 27)};
constexpr CpuWords kHaswell{
    .leaf1_ecx = 0x7ffafbff, .leaf7_ebx = 0x000027ab, .extended1_ecx = 0x21, .xcr0 = 0x7};
constexpr const char* kV3[] = {"SSE3", "SSSE3", "SSE4.1", "SSE4.2", "POPCNT", "AVX",   "AVX2",
                               "FMA",  "F16C",  "BMI1",   "BMI2",   "LZCNT",  "MOVBE", nullptr};

std::string missing(const char* const* required, const CpuWords& cpu, int expected) {
  char text[256];
  EXPECT_EQ(missing_cpu_features(required, cpu, text, sizeof(text)), expected);
  return text;
}

TEST(CpuFeatures, WhatIsMissingIsNamed) {
  EXPECT_EQ(missing(kV3, kHaswell, 0), "");
  EXPECT_EQ(missing(kV3, kNehalem, 8), "AVX, AVX2, FMA, F16C, BMI1, BMI2, LZCNT, MOVBE");
  CpuWords ivy_bridge = kHaswell;
  ivy_bridge.leaf1_ecx &= ~(1u << 12 | 1u << 22);
  ivy_bridge.leaf7_ebx = 0x281;
  ivy_bridge.extended1_ecx = 1;
  EXPECT_EQ(missing(kV3, ivy_bridge, 6), "AVX2, FMA, BMI1, BMI2, LZCNT, MOVBE");
}

TEST(CpuFeatures, RegistersThatTheSystemDoesNotSaveAreMissing) {
  CpuWords cpu = kHaswell;
  cpu.xcr0 = 0x3;
  EXPECT_EQ(missing(kV3, cpu, 4), "AVX, AVX2, FMA, F16C");
  cpu = {.leaf1_ecx = ~0u,
         .leaf7_ebx = ~0u,
         .leaf7_ecx = ~0u,
         .leaf7_edx = ~0u,
         .leaf7_1_eax = ~0u,
         .extended1_ecx = ~0u,
         .xcr0 = 0x7};
  const char* const avx512[] = {"AVX2", "AVX512F", "AVX512VNNI", nullptr};
  EXPECT_EQ(missing(avx512, cpu, 2), "AVX512F, AVX512VNNI");
  cpu.xcr0 = 0xe7;
  EXPECT_EQ(missing(avx512, cpu, 0), "");
}

TEST(CpuFeatures, AShortTextEndsWithZero) {
  for (size_t size : {0, 1, 2, 5, 6, 7}) {
    std::vector<char> text(size + 1, 'x');
    EXPECT_EQ(missing_cpu_features(kV3, kNehalem, text.data(), size), 8);
    EXPECT_EQ(text[size], 'x');
    if (size > 0) {
      EXPECT_EQ(text.data(), std::string("AVX, AVX2").substr(0, size - 1));
    }
  }
}

TEST(CpuFeatures, ThisMachineRunsThisBuildAndKnowsAllNames) {
  missing(kRequiredCpuFeatures, read_cpu_words(), 0);
  const CpuWords all{.leaf1_ecx = ~0u,
                     .leaf7_ebx = ~0u,
                     .leaf7_ecx = ~0u,
                     .leaf7_edx = ~0u,
                     .leaf7_1_eax = ~0u,
                     .extended1_ecx = ~0u,
                     .xcr0 = ~0u};
  EXPECT_EQ(missing(kRequiredCpuFeatures, all, 0), "");
  const char* const unknown[] = {"AVX2", "AVX1024", nullptr};
  EXPECT_EQ(missing(unknown, all, 1), "AVX1024");
}

bool requires_avx2() {
  for (const char* const* name = kRequiredCpuFeatures; *name != nullptr; ++name) {
    if (std::string_view(*name) == "AVX2") {
      return true;
    }
  }
  return false;
}

// The program says when static objects are made, and when main() begins.
TEST(CpuCheck, EndsAProgramBeforeAnythingElseWithOneLine) {
  if (!requires_avx2()) {
    GTEST_SKIP() << "this build does without AVX2";
  }
  const Outcome outcome = testing::run_program("program_on_old_cpu", {});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(
      outcome.err.starts_with("program_on_old_cpu: this CPU, or the system on it, has no "
                              "AVX, AVX2, FMA, F16C, "))
      << outcome.err;
  EXPECT_TRUE(outcome.err.ends_with("SPARSELLM_CPU_ARCH=native\n")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

}  // namespace
}  // namespace sparsellm

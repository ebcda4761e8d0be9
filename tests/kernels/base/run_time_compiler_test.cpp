#include "kernels/base/run_time_compiler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr std::string_view kAxpy = R"(
struct Parameters {
  const float* x;
  float* y;
  float a;
  long long count;
};

extern "C" __global__ void __launch_bounds__(kThreads) axpy(Parameters p) {
  const long long i = blockIdx.x * static_cast<long long>(kThreads) + threadIdx.x;
  if (i < p.count) {
    p.y[i] += p.a * p.x[i];
  }
}
)";

KernelSource axpy(int architecture) {
  return {.name = "axpy",
          .text = std::string(kAxpy),
          .architecture = architecture,
          .defines = {"kThreads=256", "UNUSED"}};
}

KernelSource source_of(std::string text) {
  return {.name = "source", .text = std::move(text), .architecture = 90};
}

bool is_code_of(const std::vector<std::byte>& code, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(code.data()), code.size());
  return text.starts_with("\177ELF") && text.find(name) != std::string_view::npos;
}

// Skipped, with a message, where NVRTC is not installed.
class RunTimeCompilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string problem = compiler.why_not(); !problem.empty()) {
      EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
      GTEST_SKIP() << problem;
    }
  }

  RunTimeCompiler compiler;
};

TEST(RunTimeCompilerWithoutNvrtc, SaysWhy) {
  RunTimeCompiler compiler;
  if (const std::string problem = compiler.why_not(); !problem.empty()) {
    EXPECT_TRUE(throws_error([&] { compiler.version(); }, problem));
    EXPECT_TRUE(throws_error([&] { compiler.compile(axpy(90)); }, problem));
  }
}

TEST_F(RunTimeCompilerTest, CompilesForAnArchitecture) {
  for (const int architecture : {80, 90}) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<std::byte> code = compiler.compile(axpy(architecture));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::cout << "axpy for sm_" << architecture << ": " << code.size() << " bytes in "
              << took.count() << " ms\n";
    EXPECT_TRUE(is_code_of(code, "axpy"));
    EXPECT_EQ(code, compiler.compile(axpy(architecture)));
  }
  EXPECT_NE(compiler.compile(axpy(80)), compiler.compile(axpy(90)));
}

TEST_F(RunTimeCompilerTest, HasAVersionOfOneLine) {
  EXPECT_TRUE(compiler.version().starts_with("NVRTC ")) << compiler.version();
  EXPECT_EQ(compiler.version().find('\n'), std::string::npos) << compiler.version();
  EXPECT_EQ(compiler.version(), RunTimeCompiler().version());
}

TEST_F(RunTimeCompilerTest, AnErrorNamesItsPlace) {
  EXPECT_TRUE(
      throws_error([&] { compiler.compile(source_of("\n__device__ int x = 1\n+;\n")); },
                   "cannot compile for compute capability 9.0: source(3): error: expected"));
  // Not the warning before it.
  EXPECT_TRUE(throws_error(
      [&] {
        compiler.compile(source_of("#warning an error: no\n__device__ int f() { return y; }\n"));
      },
      "source(2): error: identifier \"y\" is undefined"));
  KernelSource without = axpy(90);
  without.defines.clear();
  EXPECT_TRUE(throws_error([&] { compiler.compile(without); }, "axpy(9): error: "));
}

TEST_F(RunTimeCompilerTest, NoHeadersAreThere) {
  for (const char* header : {"cuda_fp16.h", "cstdint", "vector"}) {
    EXPECT_TRUE(throws_error(
        [&] { compiler.compile(source_of(fmt::format("#include <{}>\n", header))); },
        fmt::format("source(1): catastrophic error: could not open source file \"{}\"", header)));
  }
}

TEST_F(RunTimeCompilerTest, ErrorsOfTheAssemblerAreErrors) {
  EXPECT_TRUE(throws_error(
      [&] {
        compiler.compile(source_of(
            "extern \"C\" __global__ void f(int* p) { asm(\"no.such %0;\" :: \"r\"(*p)); }\n"));
      },
      "ptxas"));
  EXPECT_TRUE(throws_error(
      [&] {
        compiler.compile(
            source_of("extern \"C\" __device__ int g();\n"
                      "extern \"C\" __global__ void f(int* p) { *p = g(); }\n"));
      },
      "'g'"));
}

TEST_F(RunTimeCompilerTest, UnknownArchitecturesAreRefused) {
  for (const int architecture : {-1, 0, 9, 10, 35, 77, 91, 900, 1 << 30}) {
    EXPECT_TRUE(throws_error([&] { compiler.compile(axpy(architecture)); },
                             "cannot compile axpy for compute capability "))
        << architecture;
  }
  EXPECT_TRUE(throws_error([&] { compiler.compile(axpy(77)); }, "7.7: this NVRTC knows "));
}

TEST_F(RunTimeCompilerTest, SourcesThatAreNoneAreRefused) {
  EXPECT_TRUE(throws_error([&] { compiler.compile(source_of("")); }, "source: there is no text"));
  EXPECT_TRUE(throws_error([&] { compiler.compile(source_of(std::string("int\0x;", 6))); },
                           "source: the text has a character of code 0"));
  KernelSource wrong = axpy(90);
  wrong.defines.emplace_back("no name=3");
  EXPECT_TRUE(throws_error([&] { compiler.compile(wrong); }, "no name=3"));
}

TEST_F(RunTimeCompilerTest, ThreadsCompileAtOnce) {
  const std::vector<std::byte> expected = compiler.compile(axpy(90));
  RunTimeCompiler fresh;  // loaded by whoever comes first
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const bool refused =
          i % 2 == 0 || throws_error([&] { fresh.compile(source_of("?")); }, "source(1): error: ");
      right += refused && fresh.compile(axpy(90)) == expected;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, 4);
}

}  // namespace
}  // namespace sparsellm

// gemm_transposed() on the CPU: the bits of gemm() on the weight itself.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/cpu/transpose.h"
#include "kernels/gemm.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using Kind = Activation::Kind;

struct Shape {
  int64_t out;
  int64_t in;
};

// By a loop of its own.
GuardedTensor transpose_of(const Tensor& w, Layout layout) {
  const std::vector<double> values = values_of(w);
  std::vector<double> transposed;
  for (int64_t column = 0; column < w.size(1); ++column) {
    for (int64_t row = 0; row < w.size(0); ++row) {
      transposed.push_back(values[static_cast<size_t>(row * w.size(1) + column)]);
    }
  }
  GuardedTensor wt(w.dtype(), {w.size(1), w.size(0)}, layout);
  set_values(wt.view(), transposed);
  return wt;
}

class GemmTransposed : public ::testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  void SetUp() override {
    if (isa() > best_cpu_isa()) {
      GTEST_SKIP() << "this CPU has no " << name_of(isa());
    }
  }
  static CpuIsa isa() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(AllIsas, GemmTransposed,
                         ::testing::Combine(::testing::Values(CpuIsa::portable, CpuIsa::avx2,
                                                              CpuIsa::avx512),
                                            ::testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

TEST_P(GemmTransposed, HasTheBitsOfGemm) {
  Random random(81);
  CpuContext one(1, 8 << 20);
  CpuContext three(3, 8 << 20);
  int64_t combination = 0;
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{16, 8}, Shape{33, 257}, Shape{97, 31},
                             Shape{201, 1025}, Shape{50, 2064}}) {
    const GuardedTensor w = random.tensor(dtype(), {shape.out, shape.in});
    const GuardedTensor bias = random.tensor(DType::bf16, {shape.out});
    for (int64_t tokens : {1, 3, 7, 17, 130}) {
      if (tokens * shape.out * shape.in > (2 << 20)) {
        continue;
      }
      SCOPED_TRACE(fmt::format("{} tokens, [{}, {}]", tokens, shape.out, shape.in));
      ++combination;
      CpuContext& cpu = combination % 2 == 0 ? one : three;
      cpu.exec.isa = isa();
      const Layout layout = combination % 3 == 0 ? Layout::strided : Layout::contiguous;
      const GuardedTensor wt = transpose_of(w.view(), layout);
      const GuardedTensor x = random.tensor(DType::f32, {tokens, shape.in}, layout);
      const Epilogue epilogue{.bias = combination % 4 == 0 ? Tensor() : bias.view(),
                              .activation = {combination % 5 == 0 ? Kind::relu : Kind::none, 0.0f}};
      const GuardedTensor expected(DType::f32, {tokens, shape.out});
      const GuardedTensor y(DType::f32, {tokens, shape.out}, layout);
      gemm(x.view(), w.view(), epilogue, expected.view(), cpu.exec);
      gemm_transposed(x.view(), wt.view(), epilogue, y.view(), cpu.exec);
      EXPECT_TRUE(same_bits(y.view(), expected.view()));
      EXPECT_TRUE(y.guards_intact());
    }
  }
}

TEST(GemmTransposedSizes, NoColumnsAndNoTokens) {
  CpuContext cpu(2, 0);
  Random random(82);
  const GuardedTensor bias = random.tensor(DType::f32, {5});
  const GuardedTensor x(DType::f32, {2, 0});
  const GuardedTensor wt(DType::f16, {0, 5});
  const GuardedTensor y(DType::f32, {2, 5});
  gemm_transposed(x.view(), wt.view(), {.bias = bias.view(), .activation = {}}, y.view(), cpu.exec);
  const std::vector<double> b = values_of(bias.view());
  std::vector<double> expected = b;
  expected.insert(expected.end(), b.begin(), b.end());
  EXPECT_EQ(values_of(y.view()), expected);
  const GuardedTensor none(DType::f32, {0, 5});
  gemm_transposed(x.view().rows(0, 0), wt.view(), {}, none.view(), cpu.exec);
  EXPECT_TRUE(none.guards_intact());
}

TEST(GemmTransposedSizes, TakesTheWorkspaceOfGemm) {
  Random random(83);
  for (int64_t tokens : {6, 7, 129}) {
    CpuContext cpu(1, gemm_workspace_bytes({}, 1025, tokens));
    const GuardedTensor x = random.tensor(DType::f32, {tokens, 1025});
    const GuardedTensor wt = random.tensor(DType::f16, {1025, 3});
    const GuardedTensor y(DType::f32, {tokens, 3});
    gemm_transposed(x.view(), wt.view(), {}, y.view(), cpu.exec);
    EXPECT_EQ(cpu.workspace.peak_bytes(), cpu.workspace.bytes());
  }
}

TEST(GemmTransposedErrors, NameWhatDoesNotFit) {
  CpuContext cpu;
  const GuardedTensor x(DType::f32, {2, 8});
  const GuardedTensor wt(DType::f16, {8, 5});
  const GuardedTensor y(DType::f32, {2, 5});
  const GuardedTensor bias(DType::f32, {8});
  const auto multiply = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& add) {
    gemm_transposed(a, b, {.bias = add, .activation = {}}, c, cpu.exec);
  };
  EXPECT_TRUE(throws_error([&] { multiply(x.view(), y.view(), y.view(), {}); },
                           "gemm_transposed: x is f32 [2, 8] on cpu; expected f32 [*, 2] on cpu"));
  EXPECT_TRUE(throws_error([&] { multiply(x.view(), wt.view(), x.view(), {}); },
                           "gemm_transposed: y is f32 [2, 8] on cpu; expected f32 [2, 5] on cpu"));
  EXPECT_TRUE(throws_error([&] { multiply(x.view(), wt.view(), y.view(), bias.view()); },
                           "gemm_transposed: bias is f32 [8] on cpu"));
}

TEST(Transpose, AnySizeAndStride) {
  Random random(84);
  ThreadPool threads(3);
  for (DType dtype : {DType::f16, DType::f32}) {
    for (const Shape& shape :
         {Shape{1, 1}, Shape{4, 8}, Shape{8, 16}, Shape{9, 17}, Shape{31, 200}, Shape{130, 67}}) {
      for (Layout layout : {Layout::contiguous, Layout::strided}) {
        const GuardedTensor from = random.tensor(dtype, {shape.out, shape.in}, layout);
        const GuardedTensor to(dtype, {shape.in, shape.out}, layout);
        transpose(from.view(), to.view(), threads);
        EXPECT_TRUE(same_bits(to.view(), transpose_of(from.view(), layout).view()))
            << from.view().shape_string();
        EXPECT_TRUE(to.guards_intact());
      }
    }
  }
  const GuardedTensor from(DType::f16, {2, 3});
  const GuardedTensor to(DType::f32, {3, 2});
  EXPECT_TRUE(throws_error([&] { transpose(from.view(), to.view(), threads); },
                           "transpose: f16 [2, 3] into f32 [3, 2]"));
}

}  // namespace
}  // namespace sparsellm

// The order of the sums of gemm() on the CPU (kernels/cpu/gemm_kernels.h): the same bits by every
// instruction set, for any number of tokens and threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/cpu_isa.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/gemm.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/tensor_values.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using gemm_cpu_kernels::kBlockColumns;
using gemm_cpu_kernels::kLanes;

struct Shape {
  int64_t out;
  int64_t in;
};

// One row of w times one of x, one operation after the other.
float sum_in_order(const std::vector<float>& w, const std::vector<float>& x) {
  const auto columns = static_cast<int64_t>(w.size());
  float total = 0.0f;
  for (int64_t begin = 0; begin < columns; begin += kBlockColumns) {
    float parts[kLanes] = {};
    const int64_t end = std::min(begin + kBlockColumns, columns);
    // With zeros up to a multiple of kLanes, which may turn -0 into 0.
    for (int64_t c = begin; c < (end + kLanes - 1) / kLanes * kLanes; ++c) {
      const auto at = static_cast<size_t>(c);
      float& part = parts[c % kLanes];
      part = c < end ? std::fma(w[at], x[at], part) : std::fma(0.0f, 0.0f, part);
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) {
        parts[l] += parts[l + half];
      }
    }
    total = begin == 0 ? parts[0] : total + parts[0];
  }
  return total;
}

std::vector<float> row_of(const std::vector<double>& values, int64_t row, int64_t columns) {
  return {values.begin() + row * columns, values.begin() + (row + 1) * columns};
}

void set_sums(const Tensor& x, const Tensor& w, const Tensor& sums) {
  const std::vector<double> xs = values_of(x);
  const std::vector<double> ws = values_of(w);
  for (int64_t t = 0; t < x.size(0); ++t) {
    for (int64_t row = 0; row < w.size(0); ++row) {
      sums.row<float>(t)[row] = sum_in_order(row_of(ws, row, w.size(1)), row_of(xs, t, w.size(1)));
    }
  }
}

class GemmOrder : public ::testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  void SetUp() override {
    if (isa() > best_cpu_isa()) {
      GTEST_SKIP() << "this CPU has no " << name_of(isa());
    }
  }
  static CpuIsa isa() { return std::get<0>(GetParam()); }
  static DType dtype() { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(AllIsas, GemmOrder,
                         ::testing::Combine(::testing::Values(CpuIsa::portable, CpuIsa::avx2,
                                                              CpuIsa::avx512, CpuIsa::avx512_vbmi2),
                                            ::testing::Values(DType::f32, DType::f16, DType::bf16)),
                         [](const auto& test) {
                           return std::string(name_of(std::get<0>(test.param))) + "_" +
                                  std::string(name_of(std::get<1>(test.param)));
                         });

TEST_P(GemmOrder, IsThatOfTheHeader) {
  Random random(71);
  CpuContext one(1, 8 << 20);
  CpuContext three(3, 8 << 20);
  for (const Shape& shape :
       {Shape{1, 1}, Shape{3, 7}, Shape{9, 16}, Shape{13, 31}, Shape{8, 33}, Shape{26, 1023},
        Shape{24, 1024}, Shape{7, 1025}, Shape{5, 2064}, Shape{3, 3100}, Shape{103, 45}}) {
    constexpr int64_t kMaxTokens = 40;
    const GuardedTensor x = random.tensor(DType::f32, {kMaxTokens, shape.in}, Layout::strided);
    const GuardedTensor w = random.tensor(dtype(), {shape.out, shape.in}, Layout::strided);
    const GuardedTensor expected(DType::f32, {kMaxTokens, shape.out});
    set_sums(x.view(), w.view(), expected.view());
    for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 25, 40}) {
      for (CpuContext* cpu : {&one, &three}) {
        cpu->exec.isa = isa();
        const GuardedTensor y(DType::f32, {tokens, shape.out}, Layout::strided);
        gemm(x.view().rows(0, tokens), w.view(), {}, y.view(), cpu->exec);
        EXPECT_TRUE(same_bits(y.view(), expected.view().rows(0, tokens)))
            << "[" << shape.out << ", " << shape.in << "], " << tokens << " tokens, "
            << cpu->threads.size() << " threads";
      }
    }
  }
}

// The tokens and columns that are multiplied together end within a batch.
TEST_P(GemmOrder, IsTheSameInALargeBatch) {
  Random random(72);
  CpuContext cpu(2, 16 << 20);
  cpu.exec.isa = isa();
  const Shape shape{101, 2500};
  constexpr int64_t kTokens = 530;
  const GuardedTensor x = random.tensor(DType::f32, {kTokens, shape.in});
  const GuardedTensor w = random.tensor(dtype(), {shape.out, shape.in});
  const GuardedTensor alone(DType::f32, {kTokens, shape.out});
  const GuardedTensor y(DType::f32, {kTokens, shape.out}, Layout::strided);
  for (int64_t t = 0; t < kTokens; ++t) {
    gemm(x.view().rows(t, 1), w.view(), {}, alone.view().rows(t, 1), cpu.exec);
  }
  gemm(x.view(), w.view(), {}, y.view(), cpu.exec);
  EXPECT_TRUE(same_bits(y.view(), alone.view()));
}

TEST_P(GemmOrder, AColumnWhoseXIs0MayBeLeftOut) {
  Random random(73);
  CpuContext cpu(1, 8 << 20);
  cpu.exec.isa = isa();
  const Shape shape{11, 1500};
  constexpr int64_t kTokens = 14;
  const GuardedTensor x = random.tensor(DType::f32, {kTokens, shape.in});
  const GuardedTensor w = random.tensor(dtype(), {shape.out, shape.in});
  std::vector<double> w_values = values_of(w.view());
  for (int64_t column = 0; column < shape.in; column += 3) {
    for (int64_t t = 0; t < kTokens; ++t) {
      x.view().row<float>(t)[column] = 0.0f;
    }
    for (int64_t row = 0; row < shape.out; ++row) {
      w_values[static_cast<size_t>(row * shape.in + column)] = 0.0;
    }
  }
  const GuardedTensor without(dtype(), {shape.out, shape.in});
  set_values(without.view(), w_values);
  for (int64_t tokens : {int64_t{1}, kTokens}) {
    const GuardedTensor y(DType::f32, {tokens, shape.out});
    const GuardedTensor expected(DType::f32, {tokens, shape.out});
    gemm(x.view().rows(0, tokens), w.view(), {}, y.view(), cpu.exec);
    gemm(x.view().rows(0, tokens), without.view(), {}, expected.view(), cpu.exec);
    EXPECT_TRUE(same_bits(y.view(), expected.view())) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace sparsellm

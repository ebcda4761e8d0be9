#include "kernels/transpose.h"

#include <gtest/gtest.h>

#include "kernels/cpu/transpose.h"
#include "tests/testing/compare.h"
#include "tests/testing/cpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

// tests/kernels/gemm_transposed_test.cpp has more of what does the work here.
TEST(TransposeOp, OnTheCpu) {
  Random random(85);
  CpuContext cpu(2);
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const GuardedTensor x = random.tensor(dtype, {67, 130}, Layout::strided);
    const GuardedTensor y(dtype, {130, 67}, Layout::strided);
    const GuardedTensor back(dtype, {67, 130});
    transpose(x.view(), y.view(), cpu.exec);
    transpose(y.view(), back.view(), cpu.exec);
    EXPECT_TRUE(
        same_bits(y.view().rows(129, 1).columns(66, 1), x.view().rows(66, 1).columns(129, 1)));
    EXPECT_TRUE(same_bits(back.view(), x.view()));
    EXPECT_TRUE(y.guards_intact());
  }
}

TEST(TransposeOp, ErrorsNameWhatDoesNotFit) {
  CpuContext cpu;
  const GuardedTensor x(DType::f16, {2, 3});
  const GuardedTensor y(DType::f16, {3, 2});
  const GuardedTensor f32(DType::f32, {3, 2});
  const GuardedTensor row(DType::f16, {6});
  const GuardedTensor ints(DType::i32, {2, 3});
  const GuardedTensor square(DType::f16, {3, 3});
  const auto run = [&](const Tensor& from, const Tensor& to) { transpose(from, to, cpu.exec); };
  EXPECT_TRUE(throws_error([&] { run(ints.view(), y.view()); }, "transpose: x is i32 [2, 3]"));
  EXPECT_TRUE(throws_error([&] { run(row.view(), y.view()); }, "transpose: x is f16 [6]"));
  EXPECT_TRUE(throws_error([&] { run(x.view(), x.view()); },
                           "transpose: y is f16 [2, 3] on cpu; expected f32, f16 or bf16 [3, 2]"));
  EXPECT_TRUE(
      throws_error([&] { run(x.view(), f32.view()); }, "transpose: x and y are f16 and f32"));
  EXPECT_TRUE(throws_error([&] { run(square.view(), square.view()); }, "overlap"));
}

}  // namespace
}  // namespace sparsellm

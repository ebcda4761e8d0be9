#include "tests/kernels/gemm_stream_gpu_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace sparsellm::testing {

void GemmStream::SetUp() {
  GpuTest::SetUp();
  if (IsSkipped()) {
    return;
  }
  const GuardedTensor x = on_gpu(1, 8);
  const GuardedTensor y = result(1, 8);
  if (!gemm_stream_takes(gpu->cuda.state(),
                         {.x = x.view(), .w = x.view(), .bias = {}, .y = y.view()})) {
    GTEST_SKIP() << "streamed products are for compute capability 9.0";
  }
}

GuardedTensor GemmStream::on_gpu(int64_t rows, int64_t columns) {
  return random.tensor(GetParam(), {rows, columns}, Layout::contiguous, -1.0, 1.0, kGpu);
}

GuardedTensor GemmStream::result(int64_t rows, int64_t columns) {
  return {GetParam(), {rows, columns}, Layout::contiguous, kGpu};
}

void GemmStream::expect_right(const GemmOperands& operands) {
  const std::vector<double> x = values_of(operands.x);
  const std::vector<double> w = values_of(operands.w);
  const std::vector<double> bias =
      operands.bias.empty() ? std::vector<double>() : values_of(operands.bias);
  const int64_t out = operands.w.size(0);
  const int64_t in = operands.w.size(1);
  const double unit = operands.y.dtype() == DType::f32   ? 0x1p-24
                      : operands.y.dtype() == DType::f16 ? 0x1p-11
                                                         : 0x1p-8;
  std::vector<double> expected;
  std::vector<double> tolerances;
  for (int64_t t = 0; t < operands.x.size(0); ++t) {
    for (int64_t r = 0; r < out; ++r) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(r)];
      for (int64_t k = 0; k < in; ++k) {
        sum += x[static_cast<size_t>(t * in + k)] * w[static_cast<size_t>(r * in + k)];
      }
      expected.push_back(operands.relu ? std::max(sum, 0.0) : sum);
      tolerances.push_back(0x1p-22 * static_cast<double>(in + 8) + unit * std::abs(sum) + 0x1p-25);
    }
  }
  EXPECT_TRUE(all_close(operands.y, expected, tolerances));
}

}  // namespace sparsellm::testing

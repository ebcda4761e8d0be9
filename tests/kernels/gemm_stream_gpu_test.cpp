// Streamed products of few tokens: against naive sums, in chains of overlapping launches, and the
// same bits again and again.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/activation.h"
#include "kernels/gemm_stream_cuda.h"
#include "tests/testing/gpu_context.h"
#include "tests/testing/random.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

constexpr StreamMemory kMemories[] = {StreamMemory::half, StreamMemory::whole};

class GemmStream : public GpuTest {
 protected:
  void SetUp() override {
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

  GuardedTensor on_gpu(int64_t rows, int64_t columns) {
    return random.tensor(GetParam(), {rows, columns}, Layout::contiguous, -1.0, 1.0, kGpu);
  }
  GuardedTensor result(int64_t rows, int64_t columns) {
    return {GetParam(), {rows, columns}, Layout::contiguous, kGpu};
  }

  void expect_right(const GemmOperands& operands) {
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
        tolerances.push_back(0x1p-22 * static_cast<double>(in + 8) + unit * std::abs(sum) +
                             0x1p-25);
      }
    }
    EXPECT_TRUE(all_close(operands.y, expected, tolerances));
  }

  Random random{79};
};
INSTANTIATE_TEST_SUITE_P(Gpu, GemmStream, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GemmStream, AnyShape) {
  size_t combination = 0;
  for (const int64_t out : {1, 8, 63, 64, 65, 129, 520}) {
    for (const int64_t in : {8, 64, 72, 128, 136, 1032}) {
      const GuardedTensor w =
          random.tensor(GetParam(), {out, in + 16}, Layout::contiguous, -1.0, 1.0, kGpu);
      OwnedTensor bias = allocate_tensor(kGpu, GetParam(), {out}, "a bias");
      random.fill(bias.view);
      for (const int64_t tokens : {1, 2, 7, 8, 9, 16, 17, 32}) {
        const GuardedTensor x = on_gpu(tokens, in + 8);
        for (const StreamMemory memory : kMemories) {
          ++combination;
          const bool has_bias = combination % 3 != 0;
          const bool relu = combination / 3 % 2 == 0;
          const DType dtype = !has_bias && combination % 2 == 0 ? DType::f32 : GetParam();
          SCOPED_TRACE(fmt::format("{} tokens, {} x {}, bias {}, relu {}, {}", tokens, out, in,
                                   has_bias, relu, name_of(dtype)));
          const GuardedTensor y(dtype, {tokens, out + 3}, Layout::contiguous, kGpu);
          // Rows apart, each at a multiple of 16 bytes.
          const GemmOperands operands{.x = x.view().columns(8, in),
                                      .w = w.view().columns(combination % 2 == 0 ? 8 : 0, in),
                                      .bias = has_bias ? bias.view : Tensor(),
                                      .y = y.view().columns(3, out),
                                      .relu = relu};
          gemm_stream_cuda(operands, memory, gpu->exec);
          expect_right(operands);
          EXPECT_TRUE(y.guards_intact());
        }
      }
    }
  }
}

// For tools that take long with each launch: all tiles, and row blocks that blocks share.
TEST_P(GemmStream, FewProducts) {
  for (const int64_t tokens : {3, 12, 30}) {
    const GuardedTensor w = on_gpu(200, 1032);
    const GuardedTensor x = on_gpu(tokens, 1032);
    const GuardedTensor y = result(tokens, 200);
    const GemmOperands operands{.x = x.view(), .w = w.view(), .bias = {}, .y = y.view()};
    for (const StreamMemory memory : kMemories) {
      gemm_stream_cuda(operands, memory, gpu->exec);
      expect_right(operands);
    }
  }
}

// All multiprocessors, and row blocks that several of them share.
TEST_P(GemmStream, LargeShapesAlwaysGiveTheSameBits) {
  for (const auto& [out, in] :
       std::vector<std::pair<int64_t, int64_t>>{{4096, 1024}, {192, 8200}}) {
    const GuardedTensor w = on_gpu(out, in);
    for (const int64_t tokens : {1, 16, 32}) {
      const GuardedTensor x = on_gpu(tokens, in);
      const GuardedTensor first = result(tokens, out);
      GemmOperands operands{.x = x.view(), .w = w.view(), .bias = {}, .y = first.view()};
      gemm_stream_cuda(operands, StreamMemory::whole, gpu->exec);
      expect_right(operands);
      const std::vector<std::byte> bits = bytes_of(first.view());
      const GuardedTensor again = result(tokens, out);
      operands.y = again.view();
      for (int i = 0; i < 60; ++i) {
        gemm_stream_cuda(operands, kMemories[i % 2], gpu->exec);
        ASSERT_EQ(bytes_of(again.view()), bits) << "launch " << i;
      }
    }
  }
}

// Each launch waits for the results of the one before, however early it begins.
TEST_P(GemmStream, ChainsOverlap) {
  constexpr int64_t kSize = 2048;
  constexpr int kLaunches = 24;
  constexpr int kRuns = 20;
  for (const int64_t tokens : {1, 9, 32}) {
    const GuardedTensor w =
        random.tensor(GetParam(), {kSize, kSize}, Layout::contiguous, -0.04, 0.04, kGpu);
    const GuardedTensor start = on_gpu(tokens, kSize);
    const GuardedTensor a = result(tokens, kSize);
    const GuardedTensor b = result(tokens, kSize);
    const auto run = [&](bool apart) {
      gpu->cuda.copy_async(a.view().raw(), start.view().raw(), start.view().bytes());
      for (int i = 0; i < kLaunches; ++i) {
        const Tensor& from = (i % 2 == 0 ? a : b).view();
        const Tensor& to = (i % 2 == 0 ? b : a).view();
        gemm_stream_cuda({.x = from, .w = w.view(), .bias = {}, .y = to}, kMemories[i / 3 % 2],
                         gpu->exec);
        if (i % 4 == 1) {
          activate({Activation::Kind::silu, 0.0f}, to, gpu->exec);
        }
        if (apart) {
          gpu->cuda.synchronize();
        }
      }
      gpu->cuda.synchronize();
      return bytes_of(a.view());
    };
    const std::vector<std::byte> expected = run(true);
    for (int i = 0; i < kRuns; ++i) {
      ASSERT_EQ(run(false), expected) << tokens << " tokens, run " << i;
    }
  }
}

TEST_P(GemmStream, RefusesWhatItDoesNotTake) {
  const GuardedTensor w = on_gpu(64, 72);
  const GuardedTensor x = on_gpu(33, 72);
  const GuardedTensor y = result(33, 64);
  const auto stream = [&](const Tensor& rows, const Tensor& weight) {
    gemm_stream_cuda({.x = rows, .w = weight, .bias = {}, .y = y.view().rows(0, rows.size(0))},
                     StreamMemory::half, gpu->exec);
  };
  EXPECT_TRUE(throws_error([&] { stream(x.view(), w.view()); }, "33 tokens"));
  const Tensor one = x.view().rows(0, 1);
  EXPECT_TRUE(
      throws_error([&] { stream(one.columns(1, 64), w.view().columns(0, 64)); }, "not streamed"));
  EXPECT_TRUE(
      throws_error([&] { stream(one.columns(0, 64), w.view().columns(4, 64)); }, "not streamed"));
  EXPECT_TRUE(
      throws_error([&] { stream(one.columns(0, 12), w.view().columns(0, 12)); }, "not streamed"));
}

}  // namespace
}  // namespace sparsellm

// In chains of overlapping launches, and the same bits again and again.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/activation.h"
#include "tests/kernels/gemm_stream_gpu_fixture.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GemmStream, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

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
  EXPECT_TRUE(throws_error(
      [&] {
        gemm_stream_cuda({.x = one.columns(0, 64),
                          .w = w.view().columns(0, 64),
                          .order = WeightOrder::in_out,
                          .bias = {},
                          .y = y.view().rows(0, 1)},
                         StreamMemory::half, gpu->exec);
      },
      "not streamed"));
}

}  // namespace
}  // namespace sparsellm

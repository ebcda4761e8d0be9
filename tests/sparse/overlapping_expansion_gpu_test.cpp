// Products that expand their weight, with kernels after them that begin early.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "kernels/norm.h"
#include "sparse/expand_matmul.h"
#include "sparse/tca_bme/tca_bme.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class OverlappingExpansion : public GpuWeightTest {
 protected:
  // As if it had not been written.
  void poison(const GuardedTensor& x, const GuardedTensor& unwritten) const {
    gpu->cuda.copy_async(x.view().raw(), unwritten.view().raw(), x.view().bytes());
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, OverlappingExpansion, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Two streams multiply the pieces by turns, and the last one may be on either: a norm waits for
// both.
TEST_P(OverlappingExpansion, ANormReadsAllPieces) {
  constexpr int64_t kSize = 2560;
  constexpr int64_t kTokens = 400;
  constexpr int kLayers = 4;
  constexpr int kRuns = 10;
  const std::unique_ptr<WeightMatrix> loaded = tca_bme_format().load(
      tca_bme_format().encode(weight({kSize, kSize}, 0.4).view, cpu.threads), load_context());
  const OwnedTensor scale = bias_of(kSize);
  const GuardedTensor x = numbers(kTokens, kSize);
  const GuardedTensor y(DType::f32, {kTokens, kSize}, Layout::contiguous, kGpu);
  const GuardedTensor normed(GetParam(), {kTokens, kSize}, Layout::contiguous, kGpu);
  const GuardedTensor unwritten_y(DType::f32, {kTokens, kSize}, Layout::contiguous, kGpu);
  const GuardedTensor unwritten_normed(GetParam(), {kTokens, kSize}, Layout::contiguous, kGpu);
  ExecContext ordinary = *exec;
  ordinary.launches = Launches::ordinary;

  for (int64_t piece_rows : {512, 1024, 1536}) {
    SCOPED_TRACE(fmt::format("pieces of {} rows", piece_rows));
    const auto run = [&](ExecContext& ctx) {
      const bool overlapping = ctx.launches == Launches::overlapping;
      for (int i = 0; i < kLayers; ++i) {
        expand_matmul({.weight = *loaded, .piece_rows = piece_rows, .overlapped = overlapping},
                      (i == 0 ? x : normed).view(), y.view(), {}, ctx);
        if (!overlapping) {
          gpu->cuda.synchronize();
        }
        rms_norm(y.view(), {.weight = scale.view, .bias = {}, .epsilon = 1e-5f}, normed.view(),
                 ctx);
        if (!overlapping) {
          gpu->cuda.synchronize();
        }
      }
    };
    run(ordinary);
    ASSERT_FALSE(std::ranges::any_of(values_of(normed.view()),
                                     [](double value) { return std::isnan(value); }));
    const std::vector<std::byte> expected_y = bytes_of(y.view());
    const std::vector<std::byte> expected = bytes_of(normed.view());
    const auto expect_same = [&](const char* how, const auto& enqueue) {
      for (int i = 0; i < kRuns; ++i) {
        poison(y, unwritten_y);
        poison(normed, unwritten_normed);
        enqueue();
        gpu->cuda.synchronize();
        ASSERT_EQ(bytes_of(y.view()), expected_y) << how << ", run " << i;
        ASSERT_EQ(bytes_of(normed.view()), expected) << how << ", run " << i;
      }
    };
    expect_same("launched", [&] { run(*exec); });
    const CudaGraph graph(gpu->cuda, [&] { run(*exec); });
    expect_same("replayed", [&] { graph.launch(); });
  }
}

}  // namespace
}  // namespace sparsellm

// How products of tiled_csl weights are computed: the choice, and every candidate for it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/tune_cache.h"
#include "sparse/tiled_csl/cuda/tile_plan.h"
#include "tests/sparse/tiled_csl/tile_multistage_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;
using tiled_csl::TilePlan;

class GpuTilePlan : public GpuTiledCsl {
 protected:
  // With the kernels for compute capability 9.0, where the device runs them.
  static TileMatrix on_this_device(const DeviceTileMatrix& encoded) {
    TileMatrix matrix = encoded.matrix;
    matrix.multiprocessors = tile_matmul_multiprocessors(kGpu);
    return matrix;
  }

  void multiply(const TileMatrix& matrix, const TileMatmulConfig& config, const Tensor& x,
                const Tensor& y, const Epilogue& epilogue = {}) {
    Buffer ordered(kGpu, tile_gemm_workspace_bytes(x.size(1), x.size(0)), "x in order");
    tile_matmul_cuda(matrix,
                     {.x = x.raw(),
                      .x_stride = x.row_stride(),
                      .y = y.raw(),
                      .y_stride = y.row_stride(),
                      .bias = epilogue.bias.raw(),
                      .relu = epilogue.activation.kind == Activation::Kind::relu,
                      .tokens = x.size(0),
                      .dtype = x.dtype(),
                      .workspace = ordered.data()},
                     config, *exec);
    gpu->cuda.synchronize();
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTilePlan, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuTilePlan, EveryCandidateIsRight) {
  for (const Shape& shape : {Shape{700, 516}, Shape{1100, 1024}, Shape{1, 3}}) {
    const GuardedTensor x = numbers(512, shape.columns);
    for (double density : {0.0, 0.05, 0.4, 1.0}) {
      const OwnedTensor w = weight(shape, density);
      const DeviceTileMatrix encoded(tiled_csl_format().encode(w.view, cpu.threads));
      const Expected all = expected_of(x.view(), w.view);
      TileMatrix others = on_this_device(encoded);
      others.multiprocessors = 0;
      for (const TileMatrix& matrix : {on_this_device(encoded), others}) {
        for (int64_t tokens : {1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 512}) {
          for (const TileMatmulConfig& config : tile_matmul_candidates(matrix, tokens)) {
            ASSERT_TRUE(gives(tokens, shape.rows, first_rows(all, tokens, shape.rows),
                              {.has_bias = true},
                              [&](const Tensor& y, const Epilogue& epilogue) {
                                multiply(matrix, config, x.view().rows(0, tokens), y, epilogue);
                              }))
                << fmt::format("[{}, {}], density {}, {} tokens, {}", shape.rows, shape.columns,
                               density, tokens, tile_matmul_name(config));
          }
        }
      }
    }
  }
}

// More than a launch takes, rows of x and y that are not aligned, biases, ReLU.
TEST_P(GpuTilePlan, ManyTokensAreRight) {
  for (const Shape& shape : {Shape{300, 200}, Shape{1, 70}, Shape{515, 1}, Shape{2050, 129}}) {
    const OwnedTensor w = uneven_weight(shape);
    const DeviceTileMatrix encoded(tiled_csl_format().encode(w.view, cpu.threads));
    const TileMatrix matrix = on_this_device(encoded);
    if (!tile_gemm_fits(matrix)) {
      GTEST_SKIP() << "the device does not run the kernel for many tokens";
    }
    for (Layout layout : {Layout::contiguous, Layout::strided}) {
      const GuardedTensor x = numbers(1300, shape.columns, layout);
      const Expected all = expected_of(x.view(), w.view);
      for (int64_t tokens : {1, 65, 255, 256, 257, 700, 1024, 1300}) {
        for (const Activation::Kind kind : {Activation::Kind::none, Activation::Kind::relu}) {
          ASSERT_TRUE(gives(tokens, shape.rows, first_rows(all, tokens, shape.rows),
                            {.layout = layout, .has_bias = tokens % 2 == 0, .activation = kind},
                            [&](const Tensor& y, const Epilogue& epilogue) {
                              multiply(matrix, {.gemm = true}, x.view().rows(0, tokens), y,
                                       epilogue);
                            }))
              << fmt::format("[{}, {}], {} tokens", shape.rows, shape.columns, tokens);
        }
      }
    }
  }
}

// The block with the end of the row waits for all others, while the next launch has begun.
TEST_P(GpuTilePlan, ARowThatAllBlocksShare) {
  const Shape shape{130, 28672};
  const OwnedTensor w = weight(shape, 0.1);
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  exec->launches = Launches::overlapping;
  for (int64_t tokens : {8, 40, 100, 300}) {
    const GuardedTensor x = numbers(tokens, shape.columns);
    const GuardedTensor first(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    const GuardedTensor last(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
    loaded->matmul(x.view(), first.view(), {}, *exec);
    for (int i = 0; i < 20; ++i) {
      loaded->matmul(x.view(), last.view(), {}, *exec);
    }
    gpu->cuda.synchronize();
    EXPECT_TRUE(all_close(first.view(), expected_of(x.view(), w.view), kTolerance)) << tokens;
    EXPECT_TRUE(same_bits(first.view(), last.view())) << tokens;
  }
}

TEST_P(GpuTilePlan, RefusesWhatDoesNotFit) {
  const OwnedTensor w = weight({128, 64}, 0.2);
  const DeviceTileMatrix encoded(tiled_csl_format().encode(w.view, cpu.threads));
  const GuardedTensor x = numbers(17, 64);
  const GuardedTensor y(GetParam(), {17, 128}, Layout::contiguous, kGpu);
  EXPECT_THROW(multiply(on_this_device(encoded), {.tiles = 11}, x.view(), y.view()), Error);
}

// Without tuning.
TEST_P(GpuTilePlan, RuleIsToExtractForFewTokens) {
  if (tile_matmul_multiprocessors(kGpu) == 0) {
    GTEST_SKIP() << "the device does not run the kernels for compute capability 9.0";
  }
  const std::unique_ptr<WeightMatrix> loaded = load(weight({700, 520}, 0.2).view);
  for (int64_t tokens : {1, 16, 17, 64, 65, 128}) {
    EXPECT_TRUE(loaded->plan_text(GetParam(), tokens, *exec).starts_with("extract ")) << tokens;
    EXPECT_TRUE(loaded->plan_text(DType::f32, tokens, *exec).starts_with("expand ")) << tokens;
  }
  for (int64_t tokens : {129, 1024}) {
    EXPECT_EQ(loaded->plan_text(GetParam(), tokens, *exec), "extract 256 tokens at a time");
  }
  EXPECT_EQ(loaded->plan_text(GetParam(), 1025, *exec), "expand 700");
}

// By the bits of the kernel that the plan names.
TEST_P(GpuTilePlan, AProductIsComputedAsTuned) {
  const Shape shape{1100, 520};
  constexpr int64_t kBuckets[] = {1, 8, 16, 32, 64, 128, 256, 512};
  for (double density : {0.05, 0.4}) {
    const OwnedTensor w = weight(shape, density);
    const std::unique_ptr<WeightMatrix> loaded = load(w.view);
    const DeviceTileMatrix encoded(tiled_csl_format().encode(w.view, cpu.threads));
    const TileMatrix matrix = on_this_device(encoded);
    const WeightMatrix* const alike = loaded.get();
    TuneCache cache;
    EXPECT_EQ(
        loaded->tune({.alike = {&alike, 1}, .epilogue = {}, .y = GetParam(), .tokens = kBuckets},
                     cache, *exec),
        std::ssize(kBuckets));
    for (int64_t tokens : kBuckets) {
      const std::string text = loaded->plan_text(GetParam(), tokens, *exec);
      const std::optional<TilePlan> plan = tiled_csl::plan_from(text, matrix, tokens);
      ASSERT_TRUE(plan.has_value()) << text;
      const auto* const config = std::get_if<TileMatmulConfig>(&*plan);
      if (config == nullptr) {
        continue;
      }
      const GuardedTensor x = numbers(tokens, shape.columns);
      const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      const GuardedTensor expected(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view(), y.view(), {}, *exec);
      multiply(matrix, *config, x.view(), expected.view());
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(y.view(), expected.view())) << text << ", " << tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace sparsellm

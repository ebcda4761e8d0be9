// Tuning of encoded weights, the same for all formats with kernels of their own.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/cuda_context.h"
#include "kernels/base/token_buckets.h"
#include "kernels/base/tune_cache.h"
#include "sparse/general_sparse/general_sparse.h"
#include "sparse/tca_bme/tca_bme.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuWeightTuning : public GpuWeightTest {
 protected:
  static std::vector<const WeightFormat*> formats() {
    return {&tca_bme_format(), &tiled_csl_format(), &general_sparse_format()};
  }

  std::unique_ptr<WeightMatrix> load(const WeightFormat& format, const Tensor& w) {
    return format.load(format.encode(w, cpu.threads), load_context());
  }

  ExecContext context(CudaContext& cuda, Workspace& memory) {
    return {.device = kGpu, .workspace = memory, .threads = gpu->threads, .cuda = &cuda};
  }
};
INSTANTIATE_TEST_SUITE_P(Gpu, GpuWeightTuning, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Choices are measured once, and all of them are right.
TEST_P(GpuWeightTuning, MeasuresOnce) {
  const Shape shape{1100, 520};
  constexpr int64_t kTokens[] = {1, 16, 64, 128, 512};
  for (const WeightFormat* format : formats()) {
    for (double density : {0.4, 0.1}) {
      SCOPED_TRACE(fmt::format("{}, density {}", format->name(), density));
      const OwnedTensor w = weight(shape, density);
      const std::unique_ptr<WeightMatrix> one = load(*format, w.view);
      const std::unique_ptr<WeightMatrix> other = load(*format, w.view);
      const std::vector<const WeightMatrix*> alike{one.get(), other.get()};
      const OwnedTensor bias = bias_of(shape.rows);
      const MatmulTuning what{.alike = alike,
                              .epilogue = {.bias = bias.view, .activation = {}},
                              .y = GetParam(),
                              .tokens = kTokens};
      TuneCache cache;
      EXPECT_GE(one->tune(what, cache, *exec), std::ssize(kTokens));
      EXPECT_EQ(other->tune(what, cache, *exec), 0);
      // In another context the cache alone says what was chosen.
      CudaContext cuda(kGpu);
      ExecContext ctx = context(cuda, *workspace);
      EXPECT_EQ(one->tune(what, cache, ctx), 0);
      const GuardedTensor x = numbers(512, shape.columns);
      const Expected all = expected_of(x.view(), w.view);
      for (int64_t tokens : {1, 9, 16, 50, 64, 100, 300, 512}) {
        EXPECT_EQ(one->plan_text(GetParam(), tokens, ctx),
                  one->plan_text(GetParam(), tokens, *exec));
        for (ExecContext* each : {&*exec, &ctx}) {
          const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
          one->matmul(x.view().rows(0, tokens), y.view(), {}, *each);
          each->cuda->synchronize();
          EXPECT_TRUE(all_close(y.view(), first_rows(all, tokens, shape.rows), kTolerance))
              << tokens << " tokens";
        }
      }
    }
  }
}

// In a workspace for as many tokens as the tuning was told of, also with a cache of choices that
// were made where there was more.
TEST_P(GpuWeightTuning, WorkspaceIsEnough) {
  for (const WeightFormat* format : formats()) {
    for (const Shape& shape : {Shape{700, 516}, Shape{1100, 1024}, Shape{70, 60}}) {
      SCOPED_TRACE(fmt::format("{}, [{}, {}]", format->name(), shape.rows, shape.columns));
      const std::unique_ptr<WeightMatrix> loaded = load(*format, weight(shape, 0.4).view);
      const WeightMatrix* const alike = loaded.get();
      TuneCache cache;
      for (int64_t most : {2048, 1024, 131, 64}) {
        int64_t bytes = 0;
        for (int64_t tokens : token_buckets_up_to(most)) {
          bytes = std::max(bytes, loaded->workspace_bytes(tokens, Sums::fastest));
        }
        Workspace exact(kGpu, bytes);
        CudaContext cuda(kGpu);
        ExecContext ctx = context(cuda, exact);
        const std::vector<int64_t> tuned{1, 32, most};
        for (DType y_dtype : {GetParam(), DType::f32}) {
          EXPECT_NO_THROW(loaded->tune({.alike = {&alike, 1},
                                        .epilogue = {},
                                        .y = y_dtype,
                                        .tokens = tuned,
                                        .most_tokens = most},
                                       cache, ctx));
          for (int64_t tokens : {int64_t{1}, int64_t{30}, most}) {
            for (Layout layout : {Layout::contiguous, Layout::strided}) {
              const GuardedTensor x = numbers(tokens, shape.columns, layout);
              const GuardedTensor y(y_dtype, {tokens, shape.rows}, layout, kGpu);
              EXPECT_NO_THROW(loaded->matmul(x.view(), y.view(), {}, ctx)) << tokens << " tokens";
              cuda.synchronize();
            }
          }
        }
      }
    }
  }
}

// They have one configuration, whatever was tuned.
TEST_P(GpuWeightTuning, BatchInvariantProductsHaveNoChoice) {
  constexpr int64_t kTokens[] = {1, 64, 256};
  for (const WeightFormat* format : formats()) {
    const std::unique_ptr<WeightMatrix> loaded = load(*format, weight({1100, 520}, 0.2).view);
    const WeightMatrix* const alike = loaded.get();
    const MatmulTuning what{
        .alike = {&alike, 1}, .epilogue = {}, .y = GetParam(), .tokens = kTokens};
    ExecContext invariant = *exec;
    invariant.sums = Sums::batch_invariant;
    const std::string plan = loaded->plan_text(GetParam(), 1, invariant);
    TuneCache cache;
    EXPECT_EQ(loaded->tune(what, cache, invariant), 0) << format->name();
    EXPECT_EQ(loaded->tune(what, cache, *exec), std::ssize(kTokens)) << format->name();
    for (DType y : {GetParam(), DType::f32}) {
      const std::string first = loaded->plan_text(y, 1, invariant);
      for (int64_t tokens : {1, 64, 256, 2048}) {
        EXPECT_EQ(loaded->plan_text(y, tokens, invariant), first) << format->name();
      }
    }
    EXPECT_EQ(loaded->plan_text(GetParam(), 1, invariant), plan) << format->name();
  }
}

TEST_P(GpuWeightTuning, RefusesAWeightOfAnotherFormat) {
  constexpr int64_t kTokens[] = {1};
  const OwnedTensor w = weight({64, 64}, 0.2);
  const std::unique_ptr<WeightMatrix> bitmaps = load(tca_bme_format(), w.view);
  const std::unique_ptr<WeightMatrix> tiles = load(tiled_csl_format(), w.view);
  const std::vector<const WeightMatrix*> alike{bitmaps.get(), tiles.get()};
  const MatmulTuning what{.alike = alike, .epilogue = {}, .y = GetParam(), .tokens = kTokens};
  TuneCache cache;
  EXPECT_THROW(bitmaps->tune(what, cache, *exec), Error);
  EXPECT_THROW(tiles->tune(what, cache, *exec), Error);
}

}  // namespace
}  // namespace sparsellm

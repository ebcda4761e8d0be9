// gemm_transposed() on CUDA: as right as gemm(), and chosen and tuned apart from it.

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/tune_cache.h"
#include "tests/kernels/gemm_gpu_fixture.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, TransposedGemm, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(TransposedGemm, AnySizeAndStride) {
  expect_right_for({.tokens = {0, 1, 3, 9, 33, 130},
                    .in = {1, 8, 33, 130, 256},
                    .out = {0, 1, 8, 33, 130, 256}});
}

TEST_P(TransposedGemm, RefusesWhatItCannotTake) {
  const GuardedTensor x = on_gpu({3, 8});
  const GuardedTensor y(GetParam(), {3, 5}, Layout::contiguous, kGpu);
  const GuardedTensor wt_f32(DType::f32, {8, 5}, Layout::contiguous, kGpu);
  const GuardedTensor no_rows(GetParam(), {0, 5}, Layout::contiguous, kGpu);
  const GuardedTensor not_transposed = on_gpu({5, 8});
  const auto run = [&](const Tensor& a, const Tensor& wt) {
    gemm_transposed(a, wt, {}, y.view(), gpu->exec);
  };
  EXPECT_TRUE(throws_error([&] { run(x.view(), wt_f32.view()); }, "f32"));
  EXPECT_TRUE(throws_error([&] { run(x.view().columns(0, 0), no_rows.view()); }, "has columns"));
  EXPECT_TRUE(throws_error([&] { run(x.view(), not_transposed.view()); }, "gemm_transposed: x is"));
}

// Of a square weight everything but its order is the same.
TEST_P(TransposedGemm, ASquareWeightIsNotTakenForItsTranspose) {
  constexpr int64_t kSize = 256;
  const GuardedTensor w = on_gpu({kSize, kSize});
  const Tensor weights[] = {w.view()};
  const int64_t tokens[] = {4};
  TuneCache cache;
  for (Sums sums : {Sums::fastest, Sums::batch_invariant}) {
    gpu->exec.sums = sums;
    for (bool tunes : {false, true}) {
      const GuardedTensor x = on_gpu({4, kSize});
      const GuardedTensor y(GetParam(), {4, kSize}, Layout::contiguous, kGpu);
      if (tunes) {
        GemmTuning tuning{.weights = weights, .epilogue = {}, .y = GetParam(), .tokens = tokens};
        EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 1);
        tuning.order = order;
        EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 1);
        EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 0);
      }
      gemm(x.view(), w.view(), {}, y.view(), gpu->exec);
      run_and_expect_right(x.view(), w.view(), {}, y);
      gemm(x.view(), w.view(), {}, y.view(), gpu->exec);  // once more, from the map
      const GuardedTensor transposed = on_gpu({kSize, kSize});
      set_values(transposed.view(), [&] {
        const std::vector<double> values = values_of(w.view());
        std::vector<double> result(values.size());
        for (size_t i = 0; i < values.size(); ++i) {
          result[i % kSize * kSize + i / kSize] = values[i];
        }
        return result;
      }());
      expect_right(x.view(), transposed.view(), {}, y);
    }
  }
}

TEST_P(TransposedGemm, TunedPlansAreRightForAnyNumberOfTokens) {
  expect_right_when_tuned({.tokens = {1, 16, 15, 130}, .buckets = 3, .y_dtypes = {GetParam()}});
}

TEST_P(TransposedGemm, AnotherContextTakesItsPlansFromTheFile) {
  const TempDir dir;
  const auto path = dir.path() / "tuned.json";
  const GuardedTensor x = on_gpu({16, 256});
  const GuardedTensor wt = weight_on_gpu(264, 256);
  const Tensor weights[] = {wt.view()};
  const int64_t tokens[] = {16};
  const GemmTuning tuning{.weights = weights,
                          .order = order,
                          .epilogue = {.bias = {}, .activation = {Kind::silu, 0.0f}},
                          .y = GetParam(),
                          .tokens = tokens};
  TuneCache cache(path);
  EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 1);
  gpu->exec.sums = Sums::batch_invariant;
  EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 1);
  cache.save();
  const GuardedTensor invariant(GetParam(), {16, 264}, Layout::contiguous, kGpu);
  run_and_expect_right(x.view(), wt.view(), tuning.epilogue, invariant);

  gpu = std::make_unique<GpuContext>();
  TuneCache read(path);
  EXPECT_EQ(read.problem(), "");
  EXPECT_EQ(tune_gemm(tuning, read, gpu->exec), 0);
  const GuardedTensor y(GetParam(), {16, 264}, Layout::contiguous, kGpu);
  run_and_expect_right(x.view(), wt.view(), tuning.epilogue, y);
  gpu->exec.sums = Sums::batch_invariant;
  EXPECT_EQ(tune_gemm(tuning, read, gpu->exec), 0);
  const GuardedTensor same(GetParam(), {16, 264}, Layout::contiguous, kGpu);
  gemm_transposed(x.view(), wt.view(), tuning.epilogue, same.view(), gpu->exec);
  EXPECT_TRUE(same_bits(same.view(), invariant.view()));
}

TEST_P(TransposedGemm, CallsCanBeCaptured) {
  for (Sums sums : {Sums::fastest, Sums::batch_invariant}) {
    gpu->exec.sums = sums;
    const GuardedTensor x = on_gpu({16, 256});
    const GuardedTensor wt = weight_on_gpu(192, 256);
    const GuardedTensor direct(GetParam(), {16, 192}, Layout::contiguous, kGpu);
    const GuardedTensor y(GetParam(), {16, 192}, Layout::contiguous, kGpu);
    const auto run = [&](const GuardedTensor& to) {
      gemm_transposed(x.view(), wt.view(), {}, to.view(), gpu->exec);
    };
    if (sums == Sums::batch_invariant) {
      EXPECT_TRUE(throws_error([&] { CudaGraph(gpu->cuda, [&] { run(y); }); }, "transposed"));
    }
    run(direct);
    const CudaGraph graph(gpu->cuda, [&] { run(y); });
    graph.launch();
    gpu->cuda.synchronize();
    EXPECT_TRUE(same_bits(y.view(), direct.view()));
    expect_right(x.view(), wt.view(), {}, y);
  }
}

TEST_P(TransposedGemm, ARowHasTheSameBitsInAnyBatch) { expect_rows_invariant(); }

TEST_P(TransposedGemm, ARowOfALargeProductHasTheSameBitsInAnyBatch) {
  gpu->exec.sums = Sums::batch_invariant;
  const GuardedTensor x = on_gpu({200, 8192});
  const GuardedTensor wt = weight_on_gpu(2048, 8192);
  const Tensor weights[] = {wt.view()};
  TuneCache cache;
  EXPECT_EQ(
      tune_gemm({.weights = weights, .order = order, .epilogue = {}, .y = GetParam(), .tokens = {}},
                cache, gpu->exec),
      1);
  expect_invariant(x.view(), wt.view(), {}, GetParam());
}

}  // namespace
}  // namespace sparsellm

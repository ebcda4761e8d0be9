#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/tune_cache.h"
#include "tests/kernels/gemm_gpu_fixture.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/throws_error.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, Gemm, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Gemm, AnySizeAndStride) {
  expect_right_for({.tokens = {0, 1, 3, 9, 12, 17, 24, 33, 48, 130},
                    .in = {1, 8, 33, 40, 130, 256},
                    .out = {1, 8, 33, 40, 130, 256}});
}

TEST_P(Gemm, RefusesWhatItCannotTake) {
  const GuardedTensor x = on_gpu({3, 8});
  const GuardedTensor w = on_gpu({8, 8});
  const GuardedTensor w_f32(DType::f32, {8, 8}, Layout::contiguous, kGpu);
  const GuardedTensor bias_f32(DType::f32, {8}, Layout::contiguous, kGpu);
  const GuardedTensor no_columns(GetParam(), {8, 0}, Layout::contiguous, kGpu);
  const GuardedTensor y(GetParam(), {3, 8}, Layout::contiguous, kGpu);
  EXPECT_TRUE(throws_error([&] { gemm(x.view(), w_f32.view(), {}, y.view(), gpu->exec); }, "f32"));
  EXPECT_TRUE(throws_error(
      [&] {
        gemm(x.view(), w.view(), {.bias = bias_f32.view(), .activation = {}}, y.view(), gpu->exec);
      },
      "the bias is f32"));
  const GuardedTensor y_f32(DType::f32, {3, 8}, Layout::contiguous, kGpu);
  const OwnedTensor bias = bias_on_gpu(9);
  EXPECT_TRUE(throws_error(
      [&] {
        gemm(x.view(), w.view(), {.bias = bias.view.rows(0, 8), .activation = {}}, y_f32.view(),
             gpu->exec);
      },
      "one dtype"));
  EXPECT_TRUE(throws_error(
      [&] {
        gemm(x.view(), w.view(), {.bias = bias.view.rows(1, 8), .activation = {}}, y.view(),
             gpu->exec);
      },
      "multiple of 16 bytes"));
  EXPECT_TRUE(throws_error(
      [&] { gemm(x.view().columns(0, 0), no_columns.view(), {}, y.view(), gpu->exec); },
      "has columns"));
}

TEST_P(Gemm, TunedPlansAreRightForAnyNumberOfTokens) {
  expect_right_when_tuned(
      {.tokens = {1, 16, 15, 130, 48}, .buckets = 4, .y_dtypes = {GetParam(), DType::f32}});
}

TEST_P(Gemm, AnotherContextTakesItsPlansFromTheFile) {
  const TempDir dir;
  const auto path = dir.path() / "tuned.json";
  const GuardedTensor x = on_gpu({16, 256});
  const GuardedTensor w = on_gpu({264, 256});
  const OwnedTensor bias = bias_on_gpu(264);
  const Tensor weights[] = {w.view()};
  const int64_t tokens[] = {1, 16, 15, 9};
  const Epilogue epilogue{.bias = bias.view, .activation = {Kind::silu, 0.0f}};
  const GemmTuning tuning{
      .weights = weights, .epilogue = epilogue, .y = GetParam(), .tokens = tokens};
  TuneCache cache(path);
  EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 2);
  gpu->exec.sums = Sums::batch_invariant;
  EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 1);
  cache.save();
  const GuardedTensor invariant(GetParam(), {16, 264}, Layout::contiguous, kGpu);
  gemm(x.view(), w.view(), epilogue, invariant.view(), gpu->exec);

  gpu = std::make_unique<GpuContext>();
  TuneCache read(path);
  EXPECT_EQ(read.problem(), "");
  EXPECT_EQ(tune_gemm(tuning, read, gpu->exec), 0);
  const GuardedTensor y(GetParam(), {16, 264}, Layout::contiguous, kGpu);
  run_and_expect_right(x.view(), w.view(), epilogue, y);
  gpu->exec.sums = Sums::batch_invariant;
  EXPECT_EQ(tune_gemm(tuning, read, gpu->exec), 0);
  const GuardedTensor same(GetParam(), {16, 264}, Layout::contiguous, kGpu);
  gemm(x.view(), w.view(), epilogue, same.view(), gpu->exec);
  EXPECT_TRUE(same_bits(same.view(), invariant.view()));

  // Values that make no sense are measured again.
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string unit = " us: ";
  for (size_t at = text.find(unit); at != std::string::npos; at = text.find(unit, at + 1)) {
    text.insert(at + unit.size(), "zzz ");
  }
  TuneCache nonsense(dir.write("nonsense.json", text));
  EXPECT_EQ(nonsense.problem(), "");
  EXPECT_EQ(tune_gemm(tuning, nonsense, gpu->exec), 1);
  gpu->exec.sums = Sums::fastest;
  EXPECT_EQ(tune_gemm(tuning, nonsense, gpu->exec), 2);
}

TEST_P(Gemm, ACaptureCannotLookForABatchInvariantPlan) {
  gpu->exec.sums = Sums::batch_invariant;
  const GuardedTensor x = on_gpu({4, 64});
  const GuardedTensor w = on_gpu({64, 64});
  const GuardedTensor y(GetParam(), {4, 64}, Layout::contiguous, kGpu);
  const Tensor weights[] = {w.view()};
  const int64_t tokens[] = {4};
  TuneCache cache;
  EXPECT_TRUE(throws_error(
      [&] { CudaGraph(gpu->cuda, [&] { gemm(x.view(), w.view(), {}, y.view(), gpu->exec); }); },
      "batch-invariant"));
  EXPECT_TRUE(throws_error(
      [&] {
        CudaGraph(gpu->cuda, [&] {
          tune_gemm({.weights = weights, .epilogue = {}, .y = GetParam(), .tokens = tokens}, cache,
                    gpu->exec);
        });
      },
      "captured"));
  gemm(x.view(), w.view(), {}, y.view(), gpu->exec);  // looks for one
  const GuardedTensor captured(GetParam(), {4, 64}, Layout::contiguous, kGpu);
  const CudaGraph graph(gpu->cuda,
                        [&] { gemm(x.view(), w.view(), {}, captured.view(), gpu->exec); });
  graph.launch();
  gpu->cuda.synchronize();
  EXPECT_TRUE(same_bits(captured.view(), y.view()));
}

TEST_P(Gemm, ARowHasTheSameBitsInAnyBatch) { expect_rows_invariant(); }

TEST_P(Gemm, ARowOfALargeProductHasTheSameBitsInAnyBatch) {
  gpu->exec.sums = Sums::batch_invariant;
  const GuardedTensor x = on_gpu({300, 4096});
  const GuardedTensor w = on_gpu({4096, 4096});
  const Tensor weights[] = {w.view()};
  TuneCache cache;
  EXPECT_EQ(tune_gemm({.weights = weights, .epilogue = {}, .y = GetParam(), .tokens = {}}, cache,
                      gpu->exec),
            1);
  expect_invariant(x.view(), w.view(), {}, GetParam());
}

}  // namespace
}  // namespace sparsellm

// gemm_transposed() on CUDA: as right as gemm(), and chosen and tuned apart from it.

#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
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
  size_t combination = 0;
  for (int64_t tokens : {0, 1, 3, 9, 33, 130}) {
    for (int64_t in : {1, 8, 33, 130, 256}) {
      for (int64_t out : {0, 1, 8, 33, 130, 256}) {
        ++combination;
        const auto layout = [&](size_t period) {
          return combination / period % 2 == 0 ? Layout::contiguous : Layout::strided;
        };
        const Activation activation = kActivations[combination % std::size(kActivations)];
        const bool has_bias = combination / 6 % 2 == 0;
        const DType y_dtype =
            is_fused(activation) && !has_bias && combination % 4 == 0 ? DType::f32 : GetParam();
        SCOPED_TRACE(fmt::format("{} tokens, {} x {}, {}, bias {}, {}, layouts {}", tokens, out, in,
                                 name_of(activation.kind), has_bias, name_of(y_dtype),
                                 combination % 8));
        const GuardedTensor x = on_gpu({tokens, in}, layout(1));
        const GuardedTensor wt = weight_on_gpu(out, in, layout(2));
        const OwnedTensor bias = bias_on_gpu(out);
        const GuardedTensor y(y_dtype, {tokens, out}, layout(4), kGpu);
        run_and_expect_right(x.view(), wt.view(),
                             {.bias = has_bias ? bias.view : Tensor(), .activation = activation},
                             y);
      }
    }
  }
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
  constexpr int64_t kTuned[] = {1, 16, 15, 130};
  for (const auto& [out, in] : {std::pair(512, 1024), std::pair(33, 40)}) {
    for (bool has_bias : {false, true}) {
      SCOPED_TRACE(fmt::format("{} x {}, bias {}", out, in, has_bias));
      const GuardedTensor w = weight_on_gpu(out, in);
      const GuardedTensor w2 = weight_on_gpu(out, in);
      const OwnedTensor bias = bias_on_gpu(out);
      const Tensor weights[] = {w.view(), w2.view()};
      const Epilogue epilogue{.bias = has_bias ? bias.view : Tensor(),
                              .activation = {has_bias ? Kind::relu : Kind::none, 0.0f}};
      TuneCache cache;
      const GemmTuning tuning{.weights = weights,
                              .order = order,
                              .epilogue = epilogue,
                              .y = GetParam(),
                              .tokens = kTuned};
      EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 3);
      EXPECT_EQ(tune_gemm(tuning, cache, gpu->exec), 0);
      for (int64_t tokens : {1, 2, 9, 16, 17, 33, 130, 200}) {
        for (Layout layout : {Layout::contiguous, Layout::strided}) {
          SCOPED_TRACE(fmt::format("{} tokens", tokens));
          const GuardedTensor x = on_gpu({tokens, in}, layout);
          const GuardedTensor y(GetParam(), {tokens, out}, layout, kGpu);
          run_and_expect_right(x.view(), w2.view(), epilogue, y);
        }
      }
    }
  }
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

TEST_P(TransposedGemm, ARowHasTheSameBitsInAnyBatch) {
  gpu->exec.sums = Sums::batch_invariant;
  struct Case {
    int64_t out;
    int64_t in;
    bool has_bias;
    Kind activation;
    bool f32_result;
  };
  for (const Case& c :
       {Case{256, 640, true, Kind::relu, false}, Case{33, 130, true, Kind::none, false},
        Case{130, 33, false, Kind::gelu, false}, Case{1000, 96, false, Kind::none, true}}) {
    SCOPED_TRACE(fmt::format("{} x {}", c.out, c.in));
    const GuardedTensor x = on_gpu({300, c.in});
    const GuardedTensor wt = weight_on_gpu(c.out, c.in);
    const OwnedTensor bias = bias_on_gpu(c.out);
    const Epilogue epilogue{.bias = c.has_bias ? bias.view : Tensor(),
                            .activation = {c.activation, 0.0f}};
    const DType y_dtype = c.f32_result ? DType::f32 : GetParam();
    const GuardedTensor y(y_dtype, {300, c.out}, Layout::contiguous, kGpu);
    run_and_expect_right(x.view(), wt.view(), epilogue, y);
    expect_invariant(x.view(), wt.view(), epilogue, y_dtype);
  }
}

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

#include <cstdint>
#include <utility>

#include "kernels/base/cuda_graph.h"
#include "kernels/base/tune_cache.h"
#include "tests/kernels/gemm_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, Gemm, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(Gemm, EveryActivationWithAndWithoutBias) {
  const GuardedTensor w = on_gpu({72, 64});
  const OwnedTensor bias = bias_on_gpu(72);
  for (int64_t tokens : {1, 20}) {
    const GuardedTensor x = on_gpu({tokens, 64});
    for (const Activation& activation : kActivations) {
      for (bool has_bias : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{} tokens, {}, bias {}", tokens, name_of(activation.kind), has_bias));
        const GuardedTensor y(GetParam(), {tokens, 72}, Layout::contiguous, kGpu);
        run_and_expect_right(x.view(), w.view(),
                             {.bias = has_bias ? bias.view : Tensor(), .activation = activation},
                             y);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, TransposedGemm, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(TransposedGemm, SmallAndOddSizes) {
  for (const auto& [out, in] : {std::pair(72, 64), std::pair(33, 40), std::pair(7, 1)}) {
    const OwnedTensor bias = bias_on_gpu(out);
    for (int64_t tokens : {1, 20}) {
      for (Layout layout : {Layout::contiguous, Layout::strided}) {
        SCOPED_TRACE(fmt::format("{} tokens, {} x {}", tokens, out, in));
        const GuardedTensor x = on_gpu({tokens, in}, layout);
        const GuardedTensor w = weight_on_gpu(out, in, layout);
        const GuardedTensor y(GetParam(), {tokens, out}, layout, kGpu);
        run_and_expect_right(x.view(), w.view(),
                             {.bias = bias.view, .activation = {Kind::relu, 0.0f}}, y);
      }
    }
  }
}

TEST_P(Gemm, TunedCallsCanBeCaptured) {
  const GuardedTensor w = on_gpu({192, 256});
  const OwnedTensor bias = bias_on_gpu(192);
  const Tensor weights[] = {w.view()};
  const int64_t tokens[] = {16};
  for (Sums sums : {Sums::fastest, Sums::batch_invariant}) {
    gpu->exec.sums = sums;
    for (Kind kind : {Kind::relu, Kind::gelu}) {
      const Epilogue epilogue{.bias = bias.view, .activation = {kind, 0.0f}};
      TuneCache cache;
      tune_gemm({.weights = weights, .epilogue = epilogue, .y = GetParam(), .tokens = tokens},
                cache, gpu->exec);
      const GuardedTensor x = on_gpu({16, 256});
      const GuardedTensor direct(GetParam(), {16, 192}, Layout::contiguous, kGpu);
      const GuardedTensor y(GetParam(), {16, 192}, Layout::contiguous, kGpu);
      gemm(x.view(), w.view(), epilogue, direct.view(), gpu->exec);
      const CudaGraph graph(gpu->cuda,
                            [&] { gemm(x.view(), w.view(), epilogue, y.view(), gpu->exec); });
      graph.launch();
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(y.view(), direct.view()));
      expect_right(x.view(), w.view(), epilogue, y);
    }
  }
}

}  // namespace
}  // namespace sparsellm

#include <cstdint>
#include <memory>

#include "tests/sparse/tca_bme/record_uneven_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuUnevenRecords, SumsDependNeitherOnTokensNorOnTheRun) {
  for (double density : kDensities) {
    const OwnedTensor w = weight_with(density, {{5, 3}, {5, 4}, {0, 0}, {23, 17}});
    const std::unique_ptr<WeightMatrix> loaded = load(w);
    exec->sums = Sums::batch_invariant;
    const GuardedTensor x = numbers(64, kShape.columns);
    const GuardedTensor all(GetParam(), {64, kShape.rows}, Layout::contiguous, kGpu);
    loaded->matmul(x.view(), all.view(), {}, *exec);
    for (int64_t tokens : {1, 9, 40, 64}) {
      const GuardedTensor y(GetParam(), {tokens, kShape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view().rows(0, tokens), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(y.view(), all.view().rows(0, tokens))) << tokens << " tokens";
    }
    exec->sums = Sums::fastest;
  }
}

}  // namespace
}  // namespace sparsellm

#include <algorithm>
#include <cstdint>
#include <memory>

#include "tests/sparse/tiled_csl/tile_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuTiledCsl, ABatchInvariantRowHasTheSameBitsInAnyBatch) {
  exec->sums = Sums::batch_invariant;
  constexpr int64_t kTokens = 40;
  const Shape shape{700, 520};
  for (double density : {0.5, 0.1}) {
    const std::unique_ptr<WeightMatrix> loaded = load(weight(shape, density).view);
    const GuardedTensor x = numbers(300, shape.columns);
    const GuardedTensor alone(GetParam(), {kTokens, shape.rows}, Layout::contiguous, kGpu);
    for (int64_t t = 0; t < kTokens; ++t) {
      loaded->matmul(x.view().rows(t, 1), alone.view().rows(t, 1), {}, *exec);
      // synccheck sets memory aside for each launch in the queue, and would run out of it.
      gpu->cuda.synchronize();
    }
    for (int64_t tokens : {2, 8, 9, 16, 17, 31, 33, 40, 65, 130, 300}) {
      const int64_t begin = tokens < kTokens ? (kTokens - tokens) / 2 : 0;
      const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view().rows(begin, tokens), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      const int64_t count = std::min(tokens, kTokens - begin);
      EXPECT_TRUE(same_bits(y.view().rows(0, count), alone.view().rows(begin, count)))
          << tokens << " tokens, density " << density;
    }
  }
}

// The same bits run after run, with launches that overlap and without.
TEST_P(GpuTiledCsl, ProductsOneAfterTheOther) {
  const Shape shape{900, 1024};
  const OwnedTensor w = weight(shape, 0.2);
  const std::unique_ptr<WeightMatrix> loaded = load(w.view);
  for (const Launches launches : {Launches::ordinary, Launches::overlapping}) {
    exec->launches = launches;
    for (int64_t tokens : {1, 8, 16, 32, 64, 100, 300}) {
      const GuardedTensor x = numbers(tokens, shape.columns);
      const GuardedTensor first(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      const GuardedTensor second(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view(), first.view(), {}, *exec);
      loaded->matmul(x.view(), second.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(all_close(first.view(), expected_of(x.view(), w.view), kTolerance)) << tokens;
      EXPECT_TRUE(same_bits(first.view(), second.view())) << tokens;
    }
  }
}

}  // namespace
}  // namespace sparsellm

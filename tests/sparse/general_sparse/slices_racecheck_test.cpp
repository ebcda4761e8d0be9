#include <cstdint>
#include <memory>

#include "tests/sparse/general_sparse/slices_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuGeneralSparse, ABatchInvariantRowHasTheSameBitsInAnyBatch) {
  exec->sums = Sums::batch_invariant;
  constexpr int64_t kTokens = 20;
  const Shape shape{300, 520};
  const OwnedTensor w = weight(shape, 0.2);
  for (const general_sparse::Layout& layout : layouts_with_kernels()) {
    const std::unique_ptr<WeightMatrix> loaded = load(w.view, layout);
    const GuardedTensor x = numbers(130, shape.columns);
    const GuardedTensor alone(GetParam(), {kTokens, shape.rows}, Layout::contiguous, kGpu);
    for (int64_t t = 0; t < kTokens; ++t) {
      loaded->matmul(x.view().rows(t, 1), alone.view().rows(t, 1), {}, *exec);
      gpu->cuda.synchronize();
    }
    for (const int64_t tokens : {2, 8, 9, 20, 65, 130}) {
      const GuardedTensor y(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      loaded->matmul(x.view().rows(0, tokens), y.view(), {}, *exec);
      gpu->cuda.synchronize();
      const int64_t count = std::min(tokens, kTokens);
      EXPECT_TRUE(same_bits(y.view().rows(0, count), alone.view().rows(0, count)))
          << tokens << " tokens, " << to_text(layout);
    }
  }
}

// The same bits run after run, with launches that overlap and without; each product is the x of the
// next one.
TEST_P(GpuGeneralSparse, ProductsOneAfterTheOther) {
  const Shape shape{520, 520};
  const OwnedTensor w = weight(shape, 0.2);
  for (const general_sparse::Layout& layout : layouts_with_kernels()) {
    const std::unique_ptr<WeightMatrix> loaded = load(w.view, layout);
    for (const int64_t tokens : {1, 8, 24}) {
      const GuardedTensor x = numbers(tokens, shape.columns);
      const GuardedTensor apart(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      const GuardedTensor chained(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      const GuardedTensor between(GetParam(), {tokens, shape.rows}, Layout::contiguous, kGpu);
      exec->launches = Launches::ordinary;
      loaded->matmul(x.view(), between.view(), {}, *exec);
      gpu->cuda.synchronize();
      loaded->matmul(between.view(), apart.view(), {}, *exec);
      gpu->cuda.synchronize();
      exec->launches = Launches::overlapping;
      loaded->matmul(x.view(), between.view(), {}, *exec);
      loaded->matmul(between.view(), chained.view(), {}, *exec);
      gpu->cuda.synchronize();
      EXPECT_TRUE(same_bits(chained.view(), apart.view()))
          << tokens << " tokens, " << to_text(layout);
    }
  }
}

}  // namespace
}  // namespace sparsellm

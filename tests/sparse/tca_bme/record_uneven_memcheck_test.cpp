#include <memory>

#include "tests/sparse/tca_bme/record_uneven_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuUnevenRecords, ExpandToWhatTheyWere) {
  for (double density : kDensities) {
    for (const OwnedTensor& w : uneven_weights(density)) {
      const std::unique_ptr<WeightMatrix> loaded = load(w);
      for (const Range& rows : {Range{0, kShape.rows}, Range{60, 77}, Range{1499, 1}}) {
        const GuardedTensor dense(GetParam(), {rows.count, kShape.columns}, Layout::contiguous,
                                  kGpu);
        loaded->expand(rows, dense.view(), *exec);
        gpu->cuda.synchronize();
        EXPECT_TRUE(same_bits(dense.view(), w.view.rows(rows.begin, rows.count)));
        EXPECT_TRUE(dense.guards_intact());
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm

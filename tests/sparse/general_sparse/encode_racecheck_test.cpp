#include <cstdint>

#include "tests/sparse/general_sparse/encode_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuGeneralSparseEncoder, SmallWeights) {
  for (const Shape& shape : {Shape{1, 1}, Shape{70, 130}, Shape{600, 200}, Shape{40, 8500}}) {
    for (const double density : {0.0, 0.0005, 0.05, 0.1, 0.2, 0.5, 1.0}) {
      ASSERT_TRUE(encodes_as_the_cpu(weight(shape, density).view, Rows::contiguous))
          << fmt::format("[{}, {}], density {}", shape.rows, shape.columns, density);
    }
  }
  for (const int64_t block_rows : {2, 4, 8}) {
    ASSERT_TRUE(encodes_as_the_cpu(kept_blocks({600, 200}, block_rows, 0.2).view, Rows::strided));
  }
}

}  // namespace
}  // namespace sparsellm

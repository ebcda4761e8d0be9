#include <cstdint>
#include <iterator>

#include "tests/sparse/quantize_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuQuantizeRaces : public GpuQuantizeTest {};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuQuantizeRaces, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(GpuQuantizeRaces, GivesTheBytesOfTheHost) {
  uint64_t seed = 1;
  for (const Shape& shape : {Shape{1, 1}, Shape{65, 129}, Shape{3, 2500}}) {
    for (const double density : {0.0, 0.4, 1.0}) {
      expect_same({.dtype = GetParam(),
                   .rows = shape.rows,
                   .columns = shape.columns,
                   .density = density,
                   .hardness = kHardnesses[seed % std::size(kHardnesses)]},
                  seed);
      ++seed;
    }
  }
}

// Beside the matrix there are NaN.
TEST_P(GpuQuantizeRaces, ReadsNothingBesideTheMatrix) {
  for (const Shape& shape : {Shape{3, 131}, Shape{66, 40}}) {
    const OwnedTensor w = make_hard_weight(
        {.dtype = GetParam(), .rows = shape.rows, .columns = shape.columns, .density = 0.5}, 3);
    const GuardedTensor strided(GetParam(), {shape.rows, shape.columns}, Layout::strided, kGpu);
    set_values(strided.view(), values_of(w.view));
    for (const RoundedTo& to : kRoundedTo) {
      SCOPED_TRACE(to.text());
      expect_same(w.view, strided.view(), to);
    }
    EXPECT_TRUE(strided.guards_intact());
  }
}

}  // namespace
}  // namespace sparsellm

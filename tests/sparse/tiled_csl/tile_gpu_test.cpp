#include <cstdint>
#include <memory>
#include <string>

#include "tests/sparse/tiled_csl/tile_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

class GpuTiledCslCases : public GpuTiledCsl {};

// Shapes, densities, patterns, tokens and layouts at random, of tiles that are full, empty, and
// have all nonzeros in one row or column.
TEST_P(GpuTiledCslCases, AtRandom) {
  constexpr int kWeights = 500;
  constexpr int kProducts = 10;  // of each
  Random cases(31);
  for (int i = 0; i < kWeights; ++i) {
    const Shape shape{1 + cases.below(cases.below(4) == 0 ? 1000 : 300),
                      1 + cases.below(cases.below(4) == 0 ? 2000 : 300)};
    const Pattern pattern = kPatterns[cases.below(std::ssize(kPatterns))];
    const double density = cases.below(8) == 0 ? static_cast<double>(cases.below(2))
                                               : std::pow(cases.uniform(0.0, 1.0), 2.0);
    const OwnedTensor w = weight(shape, density, pattern);
    const std::unique_ptr<WeightMatrix> loaded = load(w.view);
    const GuardedTensor x =
        numbers(140, shape.columns, cases.below(2) == 0 ? Layout::strided : Layout::contiguous);
    const Expected all = expected_of(x.view(), w.view);
    for (int k = 0; k < kProducts; ++k) {
      const int64_t tokens = 1 + cases.below(cases.below(2) == 0 ? 16 : 128);
      ASSERT_TRUE(is_right(*loaded, x.view().rows(0, tokens), first_rows(all, tokens, shape.rows),
                           {.layout = cases.below(2) == 0 ? Layout::strided : Layout::contiguous,
                            .has_bias = cases.below(2) == 0}))
          << fmt::format("case {}: [{}, {}], density {}, {}, {} tokens", i, shape.rows,
                         shape.columns, density, name_of(pattern), tokens);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Gpu, GpuTiledCslCases, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace sparsellm

#include <cstdint>
#include <memory>

#include "tests/sparse/general_sparse/slices_gpu_fixture.h"
#include "tests/sparse/uneven_weights.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

INSTANTIATE_TEST_SUITE_P(Gpu, GpuGeneralSparse, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// Nonzeros as uneven as they may be.
TEST_P(GpuGeneralSparse, ProductsOfUnevenWeights) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const OwnedTensor places = uneven_weight(seed);
    const Shape shape{places.view.size(0), places.view.size(1)};
    const OwnedTensor w = weight(shape, 1.0);
    const auto* const there = static_cast<const uint16_t*>(places.view.raw());
    auto* const values = static_cast<uint16_t*>(w.view.raw());
    for (int64_t i = 0; i < w.view.element_count(); ++i) {
      values[i] = (there[i] & 0x7fff) == 0 ? 0 : values[i];
    }
    const std::unique_ptr<WeightMatrix> loaded = load(w.view);
    const int64_t tokens = 1 + static_cast<int64_t>(seed * 7919 % 40);
    const GuardedTensor x = numbers(tokens, shape.columns);
    const std::string plan = loaded->plan_text(GetParam(), tokens, *exec);
    // A product with an expanded weight may be rounded before the bias is added.
    ASSERT_TRUE(multiplies(*loaded, x.view(), expected_of(x.view(), w.view),
                           {.has_bias = !plan.starts_with("expand")}))
        << "seed " << seed << ", " << tokens << " tokens, " << plan;
  }
}

TEST_P(GpuGeneralSparse, ProductsOfAllPatterns) {
  for (const Shape& shape : {Shape{16, 16}, Shape{520, 130}, Shape{200, 17000}}) {
    const GuardedTensor x = numbers(33, shape.columns);
    for (const Pattern pattern : kPatterns) {
      for (const double density : {0.001, 0.1, 0.5}) {
        const OwnedTensor w = weight(shape, density, pattern);
        const std::unique_ptr<WeightMatrix> loaded = load(w.view);
        const Expected all = expected_of(x.view(), w.view);
        for (const int64_t tokens : {1, 4, 8, 16, 33}) {
          ASSERT_TRUE(multiplies(*loaded, x.view().rows(0, tokens),
                                 first_rows(all, tokens, shape.rows), {}))
              << name_of(pattern) << ", density " << density << ", " << tokens << " tokens";
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsellm

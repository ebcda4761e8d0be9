#include <cstdint>

#include "tests/sparse/tiled_csl/tile_encode_gpu_fixture.h"

namespace sparsellm {
namespace {

using namespace sparsellm::testing;

TEST_P(GpuTileEncoder, AllPatterns) {
  size_t number = 0;
  for (const Shape& shape : {Shape{1, 1}, Shape{128, 64}, Shape{127, 65}, Shape{129, 63},
                             Shape{600, 130}, Shape{65, 40}, Shape{1100, 129}, Shape{1000, 1000}}) {
    for (Pattern pattern : kPatterns) {
      for (double density : {0.0, 0.001, 0.05, 0.1, 0.2, 0.36, 0.5, 0.99, 1.0}) {
        if (shape.rows >= 1000 && pattern != Pattern::random) {
          continue;
        }
        const OwnedTensor w = weight(shape, density, pattern);
        for (const Placement& placement :
             {kContiguous, ++number % 2 == 0 ? kStrided : kUnaligned}) {
          ASSERT_TRUE(encodes_as_the_cpu(w.view, placement))
              << fmt::format("[{}, {}], density {}, {}, offset {}", shape.rows, shape.columns,
                             density, name_of(pattern), placement.offset);
        }
      }
    }
  }
}

TEST_P(GpuTileEncoder, NoElements) {
  for (const Shape& shape : {Shape{0, 0}, Shape{0, 70}, Shape{130, 0}}) {
    EXPECT_TRUE(encodes_as_the_cpu(weight(shape, 1.0).view, kContiguous));
  }
}

// Tiles that are full, empty, or have all nonzeros in one row, column or quarter, or in few banks;
// and banks of all densities: hosts, words and pieces of every kind.
TEST_P(GpuTileEncoder, UnevenTiles) {
  constexpr int64_t kKinds = 9;
  const Shape shape{2 * tiled_csl::kTileRows - 1, kKinds * tiled_csl::kTileColumns - 1};
  const OwnedTensor w = weight(shape, 1.0);
  auto* element = static_cast<uint16_t*>(w.view.raw());
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t column = 0; column < shape.columns; ++column, ++element) {
      const auto in_tile = static_cast<uint32_t>(column % tiled_csl::kTileColumns);
      const int64_t bank = tiled_csl::bank_of(
          tiled_csl::swizzled(static_cast<uint32_t>(row), tiled_csl::record_position(in_tile)));
      const bool kept[kKinds] = {true,
                                 false,
                                 row % 128 == 77,
                                 in_tile == 33,
                                 row % 128 < 64 && in_tile < 32,
                                 bank == 13,
                                 bank < 9,
                                 bank < 30 || random.below(3) == 0,
                                 random.below(tiled_csl::kBanks) <= bank};
      *element = kept[column / tiled_csl::kTileColumns] ? *element : uint16_t{0};
    }
  }
  for (const Placement& placement : {kContiguous, kStrided, kUnaligned}) {
    EXPECT_TRUE(encodes_as_the_cpu(w.view, placement)) << placement.offset;
  }
}

}  // namespace
}  // namespace sparsellm

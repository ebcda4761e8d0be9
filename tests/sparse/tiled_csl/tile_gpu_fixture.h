#pragma once

#include <memory>
#include <vector>

#include "sparse/tiled_csl/format/tile_layout.h"
#include "sparse/tiled_csl/tiled_csl.h"
#include "tests/sparse/gpu_weight_test.h"

namespace sparsellm::testing {

// Products with weights in the format tiled_csl on CUDA, against products in double.
class GpuTileTest : public GpuWeightTest {
 protected:
  // Full tiles and empty ones between others.
  OwnedTensor uneven_weight(const Shape& shape) {
    OwnedTensor w = weight(shape, 0.15);
    const OwnedTensor full = weight(shape, 1.0);
    auto* const to = static_cast<uint16_t*>(w.view.raw());
    const auto* const from = static_cast<const uint16_t*>(full.view.raw());
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t column = 0; column < shape.columns; ++column) {
        const int64_t tile = row / tiled_csl::kTileRows * 7 + column / tiled_csl::kTileColumns;
        if (tile % 5 < 2) {
          to[row * shape.columns + column] =
              tile % 5 == 0 ? from[row * shape.columns + column] : uint16_t{0};
        }
      }
    }
    return w;
  }
};

// As they are loaded.
class GpuTiledCsl : public GpuTileTest {
 protected:
  std::unique_ptr<WeightMatrix> load(const Tensor& w) {
    return tiled_csl_format().load(tiled_csl_format().encode(w, cpu.threads), load_context());
  }

  ::testing::AssertionResult is_right(const WeightMatrix& weight, const Tensor& x,
                                      const Expected& expected, const Product& product) {
    return multiplies(weight, x, expected, product);
  }
};

}  // namespace sparsellm::testing
